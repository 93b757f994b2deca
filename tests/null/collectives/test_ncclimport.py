"""nccl-tests output is read, and what is not such output is refused."""

import pytest

from sim.cost.ncclimport import read_nccl_tests
from topologies.errors import BadInput

HEAD = "# Collective test starting: all_reduce_perf\n#  Rank  0 Group  0 Pid 1 on a\n#  Rank  1 Group  0 Pid 2 on a\n"
ROW = "  1048576  262144  float  sum  -1  50.00  20.97  20.97  0  51.0  20.6  20.6  0\n"


def test_a_row_is_read() -> None:
    (row,) = read_nccl_tests(HEAD + ROW)
    assert row[:3] == ("all_reduce", 2, 1048576)
    assert row.seconds == pytest.approx(50e-6)


def test_alltoall_takes_the_name_of_the_cost_model() -> None:
    assert read_nccl_tests(HEAD.replace("all_reduce", "alltoall") + ROW)[0].name == "all_to_all"


def test_a_run_that_names_no_collective_is_of_the_one_that_is_asked_for() -> None:
    older = HEAD.partition("\n")[2] + ROW
    assert read_nccl_tests(older, "all_to_all")[0].name == "all_to_all"
    assert read_nccl_tests(HEAD + ROW, "all_gather")[0].name == "all_reduce", "what the run says of itself counts"


def test_the_form_without_redop_is_read() -> None:
    text = HEAD.replace("all_reduce", "all_gather") + "  1024  128  float  -1  9.5  0.11  0.05  0  9.4  0.11  0.05  0\n"
    assert read_nccl_tests(text)[0].seconds == pytest.approx(9.5e-6)


@pytest.mark.parametrize("text", ["", HEAD, ROW, HEAD + "  1024  256  float  sum\n", HEAD + "# all_gather_perf\n" + ROW])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        read_nccl_tests(text)


def test_a_run_of_what_has_no_cost_is_refused_by_its_name() -> None:
    with pytest.raises(BadInput, match=r"collective \['sendrecv'\]; give one run, named as one of all_reduce"):
        read_nccl_tests(HEAD.replace("all_reduce", "sendrecv") + ROW)
