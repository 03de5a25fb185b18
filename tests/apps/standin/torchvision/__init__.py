"""In the place of torchvision, where that cannot be imported: Heat does so for pictures, which no test here loads."""

from . import datasets as datasets
from . import transforms as transforms
