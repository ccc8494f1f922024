"""A multiplication by NumPy: the shapes of its operands as they are stored, and its products by the chain rule."""


def shapes(problem):
    """Of A, B and dC."""
    m, k, n = problem.m, problem.k, problem.n
    return {
        "A": (k, m) if problem.transposed == "a" else (m, k),
        "B": (n, k) if problem.transposed == "b" else (k, n),
        "dC": (m, n),
    }


def products(problem, matrices):
    """C of the two operands, turned if they are stored so; in training the gradient of each, turned back."""
    turned = {"A": problem.transposed == "a", "B": problem.transposed == "b"}
    a, b = (matrices[name].T if turned[name] else matrices[name] for name in "AB")
    if not problem.training:
        return {"C": a @ b}
    gradients = {"dA": matrices["dC"] @ b.T, "dB": a.T @ matrices["dC"]}
    return {"C": a @ b} | {name: one.T if turned[name[1]] else one for name, one in gradients.items()}
