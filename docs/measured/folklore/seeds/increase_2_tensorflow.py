"""How can I increase CUDA GPU memory in Google Colab? Example 2.

As written.
"""

import tensorflow as tf

def train_step(inputs, labels, model, optimizer, batch_size):
    with tf.GradientTape() as tape:
        outputs = model(inputs)
        loss = tf.keras.losses.categorical_crossentropy(labels, outputs)

    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    del loss # delete unused tensors
    del gradients

    # Inefficient batch processing. Each batch is processed separately.
    return outputs

# sample model
model = tf.keras.Sequential([tf.keras.layers.Dense(10, activation='relu', input_shape=(784,)),
                            tf.keras.layers.Dense(10, activation='softmax')])

optimizer = tf.keras.optimizers.Adam(learning_rate=0.001)


# Mock inputs and labels. Replace with your data
batch_size=32
num_batches = 10
inputs = tf.random.normal((num_batches*batch_size,784))
labels = tf.random.uniform((num_batches*batch_size,), minval=0, maxval=10, dtype=tf.int32)
labels_one_hot = tf.one_hot(labels, depth=10)

for i in range(num_batches):
    batch_inputs = inputs[i*batch_size:(i+1)*batch_size]
    batch_labels = labels_one_hot[i*batch_size:(i+1)*batch_size]
    outputs = train_step(batch_inputs, batch_labels, model, optimizer, batch_size)
