"""The study of the end of strong scaling; its README.md has the question and the answer."""
