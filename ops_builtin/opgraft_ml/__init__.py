"""The op pack for classical machine learning (ai.onnx.ml), on numbers; a module for each family.

Strings and maps are no tensors of numbers: CastMap, CategoryMapper, DictVectorizer and ZipMap stay on the CPU.
"""

from opgraft_ml import features, linear, maps, svm, trees

__all__ = ["features", "linear", "maps", "svm", "trees"]
