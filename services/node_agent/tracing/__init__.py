"""Traces of jobs: kernels, copies and operators with their times, from unmodified programs.

Owns: a folder for each running attempt with the socket that its processes ask for instructions
(`doors.py`), the captures under way (`capture.py`), and the aligned files of ended ones
(`kept.py`). Reads: /proc. PyTorch's profiler speaks dynolog's datagrams (`datagrams.py`); other
CUDA programs load Muster's CUPTI library (`cupti/`), which speaks them too.
"""
