MNIST = object
