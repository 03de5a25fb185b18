Compose = object
