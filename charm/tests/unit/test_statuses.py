"""Which of several statuses is shown."""

import pytest
from ops import ActiveStatus, BlockedStatus, MaintenanceStatus, StatusBase, WaitingStatus

import statuses


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ([], ActiveStatus()),
        ([ActiveStatus("a")], ActiveStatus("a")),
        ([ActiveStatus("a"), MaintenanceStatus("m")], MaintenanceStatus("m")),
        ([WaitingStatus("one"), MaintenanceStatus("m"), WaitingStatus("two")], WaitingStatus("one; two")),
        ([WaitingStatus("w"), BlockedStatus("one"), BlockedStatus("two")], BlockedStatus("one; two")),
    ],
)
def test_gravest_kind_is_shown_with_all_its_messages(found: list[StatusBase], shown: StatusBase) -> None:
    assert statuses.worst(found) == shown
