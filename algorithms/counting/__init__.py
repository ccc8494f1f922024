"""What a schedule comes to on all ranks, from a few: which ranks, coordinates and turns behave alike."""
