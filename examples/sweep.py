#!/usr/bin/env python3
"""Try one learning rate; array_sweep.sh runs it once for each.

MUSTER_ARRAY_TASK_ID says which element of the array this is.
"""

import os

number = int(os.environ.get("MUSTER_ARRAY_TASK_ID", "0"))
rate = 0.05 * (number + 1)
weight = 0.0
for _ in range(3):  # gradient descent on (weight - 3)^2
    weight -= rate * 2 * (weight - 3)
print(f"rate {rate:.2f} loss {(weight - 3) ** 2:.3e}")
