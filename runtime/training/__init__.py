"""What training steps are fed with, and the serial steps that they are held against."""
