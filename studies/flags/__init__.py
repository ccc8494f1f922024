"""What flags of several commands name, parsed in this one place: machines, grids, placements, manners, plans."""
