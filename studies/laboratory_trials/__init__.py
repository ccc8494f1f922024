"""Study of collectives, overlaps and token buckets on emulated networks (laboratories).

A laboratory is a network of Linux network namespaces on one machine, with links of a set rate.  Question: which share
of a link's rate do collectives reach, how much time do overlaps save in whole training steps, which settings of Open
MPI let two ranks exchange at the full rate, and which token bucket keeps the rate?  Data: collectives and training
steps on four and eight hosts, links of 200 Mbit/s.  Method: one trial (module) for each question, which alternates
between the variants.  Output: rows in the CSV files of `results/`.
"""
