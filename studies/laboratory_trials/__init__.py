"""What collectives, overlaps and token buckets come to in laboratories, measured trial by trial."""
