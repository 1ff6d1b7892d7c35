"""Arrays on their way to a device, here into other memory of the host."""

import numpy as np
import pytest
import torch

from loraplex.kernels import staging
from loraplex.kernels.staging import Staging

CPU = torch.device("cpu")
ARRAYS = [
    np.arange(3),
    np.array([[0.5], [1.5]]),
    np.zeros(0, np.int64),
    np.array([7, -1], np.int32),
    np.arange(5, dtype=np.float32),
]


def packed(num_bytes: int) -> Staging:
    """One that copies, as for a GPU."""
    stage = Staging(CPU)
    stage._take(num_bytes)
    return stage


@pytest.mark.parametrize("room", [staging.ROOM_BYTES, 70, 40, 0])
def test_arrays_arrive_as_they_were_when_they_were_added_whatever_the_room(room: int) -> None:
    stage = packed(room)
    arrays = [array.copy() for array in ARRAYS]
    moved = [stage.add(array) for array in arrays]
    for array in arrays:
        array[:] = 99
    stage.send()
    for tensor, array in zip(moved, ARRAYS, strict=True):
        assert np.array_equal(tensor.numpy(), array)
        assert tensor.numpy().dtype == array.dtype


def test_two_steps_on_their_way_do_not_share_memory() -> None:
    first, second = packed(64), packed(64)
    one, two = first.add(np.array([1])), second.add(np.array([2]))
    second.send()
    first.send()
    assert (one.item(), two.item()) == (1, 2)


def test_what_a_plan_holds_is_not_written_through_a_tensor() -> None:
    array = np.arange(3)
    array.setflags(write=False)
    Staging(CPU).add(array)[0] = 9
    assert array.tolist() == [0, 1, 2]
