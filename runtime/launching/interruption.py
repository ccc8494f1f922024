"""How a command ends that its user interrupts."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as typer and the shells give it; a launch gives it too."""
