"""Messages over a fake NCCL between ranks of this process."""

from quadrille.runtime.carriers.in_process import InProcess
from quadrille.runtime.carriers.nccl_communicator import NcclCommunicator


class Patient:
    """A request that lets the whole device go as far as it can: who then is not done waits for a rank."""

    def __init__(self, request, cupy):
        self._request, self._cupy = request, cupy

    def done(self):
        if self._request.done():
            return True
        while any(stream.step() for stream in list(self._cupy.streams.values())):
            pass
        return self._request.done()


class PatientCommunicator(NcclCommunicator):
    def _collect(self, call):
        return Patient(super()._collect(call), self._nccl._cupy)


class NcclInProcess(InProcess):
    """A carrier of ranks in this process, with messages over NCCL; every group and lane has its own id."""

    def __init__(self, size, library):
        super().__init__(size)
        self._library, self._nccl, self._ids = library, library.cupy.cuda.nccl, {}

    def communicator(self, grid, rank, axis, lane):
        members = grid.group(rank, axis)
        if len(members) == 1:
            return super().communicator(grid, rank, axis, lane)
        key = (axis, lane, members)
        unique_id = self._ids.setdefault(key, len(self._ids) + 1000 * len(self._nccl._cupy.nccl_world))
        communicator = self._nccl.NcclCommunicator(len(members), unique_id, members.index(rank))
        return PatientCommunicator(self._nccl, communicator, self._library, members.index(rank), len(members))
