"""The one check of addresses; how engine and portal go by it is tested where they connect."""

import pytest

from engine.spec.addresses import AddressRefused, is_public, require_public
from tests.addresses import PUBLIC, REFUSED


@pytest.mark.parametrize("address", REFUSED)
def test_what_is_not_on_the_public_internet(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(AddressRefused, match="which is not on the public internet"):
        require_public("inside.example", address, allow_private=False)
    require_public("inside.example", address, allow_private=True)


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is(address: str) -> None:
    assert is_public(address)


def test_what_is_no_address() -> None:
    with pytest.raises(ValueError, match="does not appear"):
        is_public("example.org")
