"""The simulator against closed forms, bounds, and the other interpreter."""

import time
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from algorithms import costs
from algorithms.choices import SETS, Choices, chunks, parse_choices
from algorithms.costs_4d import layer_cost
from algorithms.dependencies import Dependencies
from algorithms.errors import Deadlock, InputError
from algorithms.grid import AXES, Grid
from algorithms.machine import Fit, ReferenceKernels
from algorithms.matmul import Matmul, matmul_schedule
from algorithms.ops import Gemm, Receive, Send, lane
from algorithms.overlap import OVERLAPS, overlap, parse_overlap
from algorithms.parts import Part
from algorithms.schedule import Role, walk
from algorithms.tensors import Tensor
from algorithms.volumes import bytes_sent, flops
from runtime.execute import execute
from runtime.in_process import InProcess
from runtime.operands import Operands
from simulator import simulate as simulate_module
from simulator.simulate import simulate
from tests.toy_machines import (
    BANDWIDTH,
    FREE,
    LATENCY,
    PEAK,
    collective,
    gemm_row,
    leaf_spine,
    memory_row,
    one_host,
    products,
    program_of,
    star,
    transfer_row,
)
