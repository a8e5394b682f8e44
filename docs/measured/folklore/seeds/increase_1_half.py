"""How can I increase CUDA GPU memory in Google Colab? Example 1.

As written.
"""

import torch

# Default float32 tensors
a = torch.randn(1000, 1000).cuda()  # Occupies significant memory
b = torch.randn(1000, 1000).cuda()

# Converting to float16
a_fp16 = a.half() # Half-precision float
b_fp16 = b.half() # Half-precision float

# Operations with half precision
c_fp16 = torch.matmul(a_fp16, b_fp16)

print(f"Memory usage of float32 tensors a, b: {a.element_size() * a.numel() + b.element_size() * b.numel()} bytes")
print(f"Memory usage of float16 tensors a_fp16, b_fp16: {a_fp16.element_size() * a_fp16.numel() + b_fp16.element_size() * b_fp16.numel()} bytes")
