"""The kind of work of a kernel, from its name: products, attention, communication, or another kernel.

| work | letters in the kernel's name |
|---|---|
| communication | nccl, rccl, msccl, or oneshot and twoshot all-reduces of other libraries |
| attention | flash, fmha, sdpa, attention, attn |
| products | gemm, gemv, cutlass, cublas, nvjet, xmma, Cijk (Tensile, AMD), convolutions, Triton's templates |
| other kernels | all others: norms, activations, optimizers, casts |

Attention comes before products, because FlashAttention's kernels are made with CUTLASS.
"""

import re

from quadrille.experiments.traces.device_trace import Work

COMMUNICATION = re.compile(
    r"^(void )?(nccl|rccl|msccl|mscclpp)|cross_device_reduce|(one|two)_?shot_all_reduce|nvshmem", re.I
)
ATTENTION = re.compile(r"flash(?!infer::(norm|activation|sampling))|fmha|sdpa|attention|attn", re.I)
PRODUCT = re.compile(
    r"(?<!fb)gemm|gemv|cutlass|cublas|nvjet|xmma|cijk|convolve|winograd|[dw]grad|fprop|triton_tem_|_(add|b)?mm_kernel|matmul",
    re.I,
)


def kernel_work(name: str) -> Work:
    """The kind of work of a kernel.

    >>> kernel_work("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, cutlass::bfloat16_t>>"), kernel_work(
    ...     "Cijk_Alik_Bljk_BBH_MT128x128x32"
    ... )
    ('attention', 'products')
    """
    if COMMUNICATION.search(name):
        return "communication"
    if ATTENTION.search(name):
        return "attention"
    return "products" if PRODUCT.search(name) else "other kernels"


def short_name(name: str, most: int = 60) -> str:
    """A kernel's name without return type, parameters and most of its template arguments.

    >>> short_name("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int, float)")
    'vectorized_elementwise_kernel<4, CUDAFunctor_add<float> >'
    """
    name = re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    depth = 0
    for place, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0 and place:
            name = name[:place]
            break
    name = re.sub(r"\b(at|native|c10|std|cuda|detail|templates)::", "", name)
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    return name if len(name) <= most else name[: most - 1] + "…"
