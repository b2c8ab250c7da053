"""A model on TensorFlow, as Keras 3 has it; `clear_session` forgets the graph's state."""

import tensorflow

__version__ = '3.12.0'
cleared = []


class Model:
    def __init__(self, count):
        self._weights = [tensorflow.zeros(count)]

    def fit(self, count):
        # Activations and gradients, gone when it is done.
        batch = [tensorflow.zeros(count) for _ in range(4)]
        del batch
        return {'loss': 0.5}


class backend:
    @staticmethod
    def clear_session():
        cleared.append('session')
