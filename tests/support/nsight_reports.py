"""A writer of Nsight Systems' exported reports whose times are known, from the events of `kineto_traces`."""

import sqlite3
from contextlib import closing

from tests.support.kineto_traces import events

TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
  correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3');
"""
PROCESS = 4321 << 24


def write_report(path, rows=None, more="", step="iteration {}"):
    """The path of a report with these events; `more` is SQL that runs last."""
    strings = {}
    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES)
        for row in events(origin=1e6) if rows is None else rows:
            start, end = round(1000 * row["ts"]), round(1000 * (row["ts"] + row["dur"]))
            arguments, name = row["args"], strings.setdefault(row["name"], len(strings) + 1)
            if row["cat"] == "user_annotation":
                text = step.format(row["name"].partition("#")[2])
                database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, NULL, 1)", (start, end, text))
            elif row["cat"] == "cuda_runtime":
                values = (start, end, arguments["correlation"])
                database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 1, ?)", values)
            else:
                where = (start, end, 0, arguments["stream"], arguments["correlation"], PROCESS)
                if row["cat"] == "kernel":
                    text = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?)"
                    database.execute(text, (*where, name, name))
                else:
                    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, ?, ?, ?, 9, 1)", where)
        database.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(number, name) for name, number in strings.items()]
        )
        database.executescript(more)
        database.commit()
    return path
