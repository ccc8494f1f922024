"""A topology built as a real network on one Linux machine, for real ranks to run on.

`wiring.py` says what a topology comes to as namespaces, cables, addresses and
routes, `namespaces.py` has the kernel make it, `queues.py` what waits before a cable,
`register.py` remembers what was made, `laboratory.py` brings it up and down, and `ranks.py` starts ranks in it.
`studies/token_buckets.py` says how large the token bucket of a link is; `studies/laboratory_trials/` is
what was found out about such networks.
"""
