"""A Keras 3 model on TensorFlow. `clear_session` discards the state of the graph."""

import tensorflow

__version__ = '3.12.0'
cleared = []


class Model:
    def __init__(self, count):
        self._weights = [tensorflow.zeros(count)]

    def fit(self, count):
        # Activations and gradients are freed at the end of a batch.
        batch = [tensorflow.zeros(count) for _ in range(4)]
        del batch
        return {'loss': 0.5}


class backend:
    @staticmethod
    def clear_session():
        cleared.append('session')
