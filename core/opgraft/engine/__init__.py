"""The engine: binds a plan to its handlers and runs it on MLX."""

from opgraft.engine.inference import read_model
from opgraft.engine.lanes import lane, require_threads
from opgraft.engine.program import ConstantStore, Program
from opgraft.engine.verify import VerifiedRegistry, problem_with

__all__ = ["ConstantStore", "Program", "VerifiedRegistry", "lane", "problem_with", "read_model", "require_threads"]
