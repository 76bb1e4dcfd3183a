"""The build steps that pyproject.toml cannot state: the extension modules, and where registry.yaml goes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py


class BuildPy(build_py):
    """Puts the tree's registry.yaml into the package; an editable install reads it where it lies."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copy("registry.yaml", self._packaged_registry())

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs: list[str] = list(super().get_outputs(include_bytecode))
        return outputs if self.editable_mode else [*outputs, str(self._packaged_registry())]

    def _packaged_registry(self) -> Path:
        return Path(self.build_lib, "opgraft", "registry.yaml")


BLAS = Extension(
    "opgraft._blas",
    ["core/opgraft/_blas.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
)

setup(
    ext_modules=[BLAS] if sys.platform.startswith("linux") else [],
    cffi_modules=["core/opgraft/host/build_ffi.py:ffibuilder"],
    cmdclass={"build_py": BuildPy},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
