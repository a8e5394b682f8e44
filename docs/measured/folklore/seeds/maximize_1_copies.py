"""How can I maximize GPU memory usage in Google Colab? Example 1.

As written.
"""

import torch
import numpy as np

# Inefficient approach: Multiple copies
data_np = np.random.rand(1024, 1024, 3) # large numpy array
data_tensor_1 = torch.from_numpy(data_np)
data_tensor_2 = data_tensor_1.clone() # unnecessary copy
# ... further processing ...
del data_np  # memory still not released due to data_tensor_1 and 2
del data_tensor_1
del data_tensor_2

# Efficient approach: Direct manipulation
data_np = np.random.rand(1024, 1024, 3)
data_tensor = torch.from_numpy(data_np)
# ... processing directly on data_tensor ...
del data_np # memory released after processing in the tensor
del data_tensor
torch.cuda.empty_cache() # explicitly release cached memory
