"""How can Google Colab memory issues be resolved? Example 3.

As written.
"""

from scipy.sparse import csr_matrix
import numpy as np
# Create a very large, sparse random matrix
rows, cols = 100000, 10000
data_size = 1000
indices_rows = np.random.choice(rows,size = data_size,replace=False)
indices_cols = np.random.choice(cols,size = data_size,replace=False)
data_vals = np.random.rand(data_size)

sparse_matrix = csr_matrix((data_vals,(indices_rows,indices_cols)),shape=(rows,cols))

# Simulating the memory of dense representation
dense_matrix = np.zeros((rows, cols))
dense_matrix[indices_rows,indices_cols]=data_vals
print("Memory Usage of dense matrix in MB:", dense_matrix.nbytes/(1024*1024))
print("Memory Usage of sparse matrix in MB:", sparse_matrix.data.nbytes/(1024*1024))

del sparse_matrix
del dense_matrix
import gc
gc.collect()
