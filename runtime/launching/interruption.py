"""How a command ends that its user interrupts."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells give it; a launch gives it too."""
