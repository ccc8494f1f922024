"""The study of the best layouts of large models; its README.md has the question and the answer."""
