"""Steps in chunks: what may begin before its step is over, what must wait, and that nothing but the cut changes."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from quadrille.runtime.carriers.pipelined_steps import (
    CHUNKS_BEFORE_READY,
    PipelinedTransfer,
    PipelineStep,
    split_into_chunks,
)

EIGHT = 8
"""Bytes of a number."""


class Post:
    """A group whose messages end when the test says so."""

    max_outstanding = 32, 16

    def __init__(self):
        self.begun, self.ended = [], set()

    def send(self, buffer, to, *, synchronous=False):
        return self._begin("synchronous send" if synchronous else "send", buffer, to)

    def receive(self, buffer, sender):
        return self._begin("receive", buffer, sender)

    def signal_ready(self, peer):
        return self._begin("signal_ready", None, peer)

    def await_ready(self, peer):
        return self._begin("await_ready", None, peer)

    def _begin(self, verb, buffer, peer):
        self.begun.append((verb, peer, buffer))
        return Ended(self.ended, len(self.begun) - 1)

    def verbs(self):
        return [verb for verb, _, _ in self.begun]

    def end(self, *numbers):
        self.ended.update(numbers)


class Ended:
    def __init__(self, ended, number):
        self._ended, self._number = ended, number

    def done(self):
        return self._number in self._ended


def summing_steps(buffer, room, result):
    """Two steps of a reduce-scatter of four numbers each: what is added in the first is sent in the second."""
    first, second, third = buffer[:4], buffer[4:8], buffer[8:]
    return [
        PipelineStep(((room, 1),), ((third, 2),), ((second, room, second),)),
        PipelineStep(((room, 1),), ((second, 2),), ((first, room, result),)),
    ]


def test_a_chunk_is_sent_on_while_the_rest_of_its_step_is_under_way():
    buffer, room, result = np.arange(12.0), np.zeros(4), np.zeros(4)
    post = Post()
    stream = PipelinedTransfer(split_into_chunks(summing_steps(buffer, room, result), 2 * EIGHT), post, np.add)
    assert not stream.done()
    assert post.verbs() == ["receive", "receive", "send", "send"], "the first step alone"
    post.begun[0][2][...] = 100.0
    post.end(0)
    assert not stream.done()
    assert buffer[4:8].tolist() == [104.0, 105.0, 6.0, 7.0], "the first chunk is added"
    assert post.verbs()[4:] == ["receive", "send"], "its room is free, and its sum goes on"
    assert post.begun[5][2].tolist() == [104.0, 105.0]


def test_a_few_chunks_go_ahead_and_the_others_once_their_receiver_has_said_that_it_is_there():
    buffer, post = np.arange(CHUNKS_BEFORE_READY + 3.0), Post()
    stream = PipelinedTransfer(split_into_chunks([PipelineStep((), ((buffer, 1),), ())], EIGHT), post, np.add)
    assert not stream.done()
    assert post.verbs() == ["await_ready", *["send"] * CHUNKS_BEFORE_READY]
    post.end(*range(1, CHUNKS_BEFORE_READY + 1))
    assert not stream.done() and len(post.begun) == CHUNKS_BEFORE_READY + 1
    assert [head.done() for head in stream.next_requests] == [False], "it waits for the greeting"
    post.end(0)
    assert not stream.done()
    assert post.verbs()[CHUNKS_BEFORE_READY + 1 :] == ["send", "send", "synchronous send"]
    post.end(*range(CHUNKS_BEFORE_READY + 4))
    assert stream.done() and not stream.next_requests


def test_as_many_chunks_as_are_sent_eagerly_need_no_ready_message():
    buffer, post = np.arange(2.0 * CHUNKS_BEFORE_READY), Post()
    stream = PipelinedTransfer(
        split_into_chunks(
            [PipelineStep((), ((buffer[:CHUNKS_BEFORE_READY], 1), (buffer[CHUNKS_BEFORE_READY:], 2)), ())], EIGHT
        ),
        post,
        np.add,
    )
    assert not stream.done()
    assert post.verbs() == [*["send"] * (CHUNKS_BEFORE_READY - 1), "synchronous send"] * 2


def test_who_receives_more_than_goes_ahead_says_first_that_it_is_there():
    for chunks, said in ((CHUNKS_BEFORE_READY, []), (CHUNKS_BEFORE_READY + 1, ["signal_ready"])):
        room, post = np.zeros(chunks), Post()
        stream = PipelinedTransfer(split_into_chunks([PipelineStep(((room, 1),), (), ())], EIGHT), post, np.add)
        assert not stream.done()
        assert post.verbs() == [*said, *["receive"] * chunks]
        post.end(*range(len(said), len(post.begun)))
        assert stream.done() == (not said), "its greeting is under way"
        assert [head.done() for head in stream.next_requests] == [False] * len(said)
        post.end(*range(len(post.begun)))
        assert stream.done()


def test_nothing_is_received_into_room_whose_content_was_not_added():
    buffer, room, result = np.arange(12.0), np.zeros(4), np.zeros(4)
    chunks = split_into_chunks(summing_steps(buffer, room, result), 2 * EIGHT)
    assert [one.needs.reductions for one in chunks.receives] == [0, 0, 1, 2]
    assert [one.needs.reductions for one in chunks.sends] == [0, 0, 1, 2]


def test_what_is_sent_is_not_added_to_before_it_is_gone():
    """In an exchange of the whole buffer both members send it while the other's comes."""
    buffer, room = np.arange(4.0), np.zeros(4)
    chunks = split_into_chunks([PipelineStep(((room, 1),), ((buffer, 1),), ((buffer, room, buffer),))], 2 * EIGHT)
    assert [(one.needs.receives, one.needs.sends) for one in chunks.reductions] == [(1, 1), (2, 2)]


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=4), chunk=st.integers(1, 100))
def test_chunks_cover_the_messages_in_order_and_none_is_too_long(sizes, chunk):
    edges = np.cumsum([0, *sizes])
    buffer = np.arange(float(edges[-1]))
    steps = [PipelineStep((), ((buffer[start:stop], 1),), ()) for start, stop in pairwise(edges)]
    chunks = split_into_chunks(steps, chunk)
    assert np.concatenate([one.buffer for one in chunks.sends]).tolist() == buffer.tolist()
    assert all(one.buffer.nbytes <= max(chunk, EIGHT) for one in chunks.sends)
    assert sum(one.buffer.size == 0 for one in chunks.sends) == sizes.count(0), "an empty message is one"
