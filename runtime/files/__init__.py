"""Files that all ranks read and write together: matrices (.npy) and checkpoints (safetensors)."""
