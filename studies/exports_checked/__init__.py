"""Study of the files that Quadrille exports: does another simulator predict the same times from them?

Data: schedules as GOAL and networks as SimGrid XML.  Method: SimGrid follows the tasks of the schedule on the platform,
and `replay` simulates the same two files.  Output: the times of both, as a table and JSON.
"""
