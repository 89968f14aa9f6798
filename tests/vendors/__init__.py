"""The device layer of jobs (`libs/job/device`, the vendors' memory drivers) over libraries that are
built from C and stand in for libcuda, libamdhip64 and libze_loader.
"""
