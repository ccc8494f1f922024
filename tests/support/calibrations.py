"""Small sizes with which a calibration takes seconds, and the program that calibrates with them."""

import argparse
import sys

from quadrille.experiments.calibrate.calibrate import calibrate
from quadrille.runtime.execution.rank_environment import start_world
from quadrille.runtime.measuring.calibration_sizes import CalibrationSizes

SMALL = CalibrationSizes(
    products=6,
    smallest=8,
    largest=32,
    stream_bytes=(1 << 10, 1 << 12),
    kernel_elements=(64,),
    transfer_bytes=(8, 1 << 10, 1 << 14),
    library_bytes=(8, 1 << 10, 1 << 14),
    pool_bytes=1 << 16,
    chain_product=16,
    reference_product=32,
    reference_bytes=1 << 12,
    link_bytes=(1 << 10, 1 << 12),
    link_repeats=(2, 2),
    link_rest_seconds=0.0,
    overlap_product=64,
    overlap_products=2,
    overlap_repeats=2,
    overlap_seconds=0.02,
    settling_seconds=0.02,
    window_seconds=0.05,
)


def main(words):
    """`calibrate` with small sizes, as a rank runs it: calibrate --out FILE [--topology T] [--routing R]."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command")
    for flag in ("--out", "--topology", "--routing"):
        parser.add_argument(flag, default="")
    asked = parser.parse_args(words)
    start_world()
    topology = asked.topology or None
    calibrate(asked.out, topology=topology, routing=asked.routing, command=["quadrille", *words], sizes=SMALL)


if __name__ == "__main__":
    main(sys.argv[1:])
