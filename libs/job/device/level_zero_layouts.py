"""The structures of Intel's Level Zero interface that `level_zero.py` fills and reads.

Each begins with its type's number and a pointer to an extension. Names and layouts are those of
ze_api.h 1.17; tests/vendors/test_layouts.py compares them with the header where it is installed.
"""

import ctypes
from ctypes import c_char, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any, Final

DEVICE_PROPERTIES: Final = 0x3
DEVICE_MEMORY_PROPERTIES: Final = 0x7
CONTEXT_DESC: Final = 0xD
COMMAND_QUEUE_DESC: Final = 0xE
EXTERNAL_MEMORY_EXPORT_DESC: Final = 0x18
EXTERNAL_MEMORY_IMPORT_FD: Final = 0x19
EXTERNAL_MEMORY_EXPORT_FD: Final = 0x1A
PHYSICAL_MEM_DESC: Final = 0x20
PCI_EXT_PROPERTIES: Final = 0x10008
PHYSICAL_MEM_PROPERTIES: Final = 0x20040

HEAD: Final[list[tuple[str, Any]]] = [("stype", c_uint32), ("next", c_void_p)]


class DeviceProperties(ctypes.Structure):
    """ze_device_properties_t."""

    _fields_ = [
        *HEAD,
        ("type", c_uint32),
        ("vendor_id", c_uint32),
        ("device_id", c_uint32),
        ("flags", c_uint32),
        ("subdevice_id", c_uint32),
        ("core_clock_rate", c_uint32),
        ("max_allocation", c_uint64),
        ("counts", c_uint32 * 7),
        ("timer_resolution", c_uint64),
        ("timestamp_bits", c_uint32),
        ("kernel_timestamp_bits", c_uint32),
        ("uuid", c_uint8 * 16),
        ("name", c_char * 256),
    ]


class DeviceMemoryProperties(ctypes.Structure):
    """ze_device_memory_properties_t."""

    _fields_ = [
        *HEAD,
        ("flags", c_uint32),
        ("clock_rate", c_uint32),
        ("bus_width", c_uint32),
        ("total_size", c_uint64),
        ("name", c_char * 256),
    ]


class PciProperties(ctypes.Structure):
    """ze_pci_ext_properties_t, with its address and speed."""

    _fields_ = [
        *HEAD,
        ("domain", c_uint32),
        ("bus", c_uint32),
        ("device", c_uint32),
        ("function", c_uint32),
        ("generation", c_int32),
        ("width", c_int32),
        ("bandwidth", c_int64),
    ]


class ContextDescription(ctypes.Structure):
    """ze_context_desc_t."""

    _fields_ = [*HEAD, ("flags", c_uint32)]


class QueueDescription(ctypes.Structure):
    """ze_command_queue_desc_t."""

    _fields_ = [
        *HEAD,
        ("ordinal", c_uint32),
        ("index", c_uint32),
        ("flags", c_uint32),
        ("mode", c_uint32),
        ("priority", c_uint32),
    ]


class ExternalMemory(ctypes.Structure):
    """ze_external_memory_export_desc_t without `fd`, else the import and export descriptors."""

    _fields_ = [*HEAD, ("flags", c_uint32), ("fd", c_int)]


class PhysicalDescription(ctypes.Structure):
    """ze_physical_mem_desc_t."""

    _fields_ = [*HEAD, ("flags", c_uint32), ("size", c_size_t)]


class PhysicalProperties(ctypes.Structure):
    """ze_physical_mem_properties_t."""

    _fields_ = [*HEAD, ("id", c_uint64), ("size", c_uint64)]
