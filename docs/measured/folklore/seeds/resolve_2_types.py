"""How can Google Colab memory issues be resolved? Example 2.

As written.
"""

import numpy as np

# Example of a large array with default float64
large_array_float64 = np.random.rand(1000000, 100)

print("Memory usage with float64:", large_array_float64.nbytes / (1024 * 1024), "MB")

# Convert to float32
large_array_float32 = large_array_float64.astype(np.float32)
print("Memory usage with float32:", large_array_float32.nbytes / (1024 * 1024), "MB")

# Example with integer data
large_array_int_default = np.random.randint(0, 10000, size=(1000000, 100))
print("Memory usage of default int:", large_array_int_default.nbytes/(1024*1024), "MB")
# Find the minimal integer that fits the data:
min_int = np.min(large_array_int_default)
max_int = np.max(large_array_int_default)
if min_int >= np.iinfo(np.int8).min and max_int <= np.iinfo(np.int8).max:
   large_array_int_optimized = large_array_int_default.astype(np.int8)
elif min_int >= np.iinfo(np.int16).min and max_int <= np.iinfo(np.int16).max:
   large_array_int_optimized = large_array_int_default.astype(np.int16)
else:
   large_array_int_optimized = large_array_int_default.astype(np.int32)
print("Memory usage of optimized int:", large_array_int_optimized.nbytes/(1024*1024), "MB")
del large_array_float64
del large_array_float32
del large_array_int_default
del large_array_int_optimized
import gc
gc.collect()
