"""The typed error: its fields, its sentence, and its way through another process."""

import pickle

import pytest

from libs.job.device.errors import REMEDIES, Cause, CrossVendorTransferError, DeviceError


def test_an_error_says_what_failed_on_what_in_the_driver_s_words_and_what_to_do() -> None:
    error = DeviceError(
        "OUT_OF_MEMORY",
        "cuMemCreate",
        driver="cuda",
        code=2,
        name="CUDA_ERROR_OUT_OF_MEMORY",
        text="out of memory",
        on="device 0, 2097152 bytes",
    )
    assert str(error) == (
        "cuda: cuMemCreate failed on device 0, 2097152 bytes: CUDA_ERROR_OUT_OF_MEMORY (2): "
        "out of memory. Free device memory or ask for less."
    )
    assert error.cause is Cause.OUT_OF_MEMORY and error.cause == "OUT_OF_MEMORY"


def test_a_code_without_a_name_is_shown_as_a_number() -> None:
    assert str(DeviceError(Cause.UNKNOWN, "f", driver="hip", code=77)) == "hip: f failed: code 77."


def test_an_unknown_cause_is_a_bug_of_the_caller() -> None:
    with pytest.raises(ValueError, match="BROKEN"):
        DeviceError("BROKEN", "f", driver="cuda")


def test_errors_keep_their_fields_between_processes() -> None:
    for error in (
        DeviceError("HANGS", "cuInit", driver="cuda", text="no answer within 60 s"),
        CrossVendorTransferError("nvidia device 0", "amd device 0"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.cause) == (type(error), str(error), error.cause)


def test_a_cross_vendor_error_names_both_ends_and_the_way_out() -> None:
    error = CrossVendorTransferError("nvidia device 0", "amd device 1")
    assert isinstance(error, DeviceError) and error.cause == Cause.CROSS_VENDOR
    assert "nvidia device 0 to amd device 1" in str(error) and "through_host=True" in str(error)


def test_remedies_are_sentences() -> None:
    assert [text for text in REMEDIES.values() if not text.endswith(".")] == []
