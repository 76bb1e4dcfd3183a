"""The part of ONNX Runtime's C ABI that opgraft uses, as data: nothing else in the tree knows a slot or a layout.

`OrtApi` and `OrtEpApi` are tables of function pointers to which each release appends, so a slot's number never changes.
A line here is `slot  signature`. The structures that opgraft fills are listed member by member: a member with a
signature is answered by a Python callback, one with `= {...}` by that C body alone, and a bare name stays null.

This module imports nothing, since the build reads it before anything is installed.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

API_VERSION: Final = 29
"""The newest API version whose layouts are written here; a newer ONNX Runtime is asked for this one."""

OLDEST_API_VERSION: Final = 24
"""The oldest API version that has every slot in use but those of `ADDED_IN`."""

ADDED_IN: Final = {
    "KernelInfoGetAttributeArray_string": 25,
    "CreateProfilingEvent": 25,
    "ReleaseProfilingEvent": 25,
    "ProfilingEventsContainer_AddEvents": 25,
}
"""The API version that brought a function which is used only from there on."""


class Function(NamedTuple):
    """One C function: `parameters` as (declaration, name) pairs."""

    slot: int
    name: str
    returns: str
    parameters: tuple[tuple[str, str], ...]

    @property
    def declared_parameters(self) -> str:
        return ", ".join(declaration for declaration, _ in self.parameters) or "void"

    @property
    def arguments(self) -> str:
        return ", ".join(name for _, name in self.parameters)


class Member(NamedTuple):
    """One member of a structure that opgraft fills: data, a function, or a slot that stays null."""

    name: str
    data_type: str | None = None
    function: Function | None = None
    body: str | None = None
    """The C body of a function that needs no Python."""


_FUNCTION = re.compile(
    r"(?P<slot>\d+)\s+(?P<returns>.*?[\s*])(?P<name>\w+)\((?P<parameters>.*?)\)(\s*=\s*(?P<body>\{.*\}))?"
)
_DATA = re.compile(r"\d+\s+(?P<type>\w+) (?P<name>\w+)")


def _function(match: re.Match[str]) -> Function:
    declarations = [text.strip() for text in match["parameters"].split(",") if text.strip() not in ("", "void")]
    parameters = tuple((text, re.split(r"[\s*]", text)[-1]) for text in declarations)
    return Function(int(match["slot"]), match["name"], match["returns"].strip(), parameters)


def _functions(table: str) -> tuple[Function, ...]:
    return tuple(_function(match) for match in _FUNCTION.finditer(table))


def _members(table: str) -> tuple[Member, ...]:
    members: list[Member] = []
    for line in table.strip().splitlines():
        line = line.strip()
        if match := _FUNCTION.fullmatch(line):
            members.append(Member(match["name"], function=_function(match), body=match["body"]))
        elif match := _DATA.fullmatch(line):
            members.append(Member(match["name"], data_type=match["type"]))
        else:
            members.append(Member(line.split()[-1]))
        if int(line.split()[0]) != len(members) - 1:
            raise ValueError(f"slot out of order: {line}")
    return tuple(members)


OPAQUE_TYPES: Final = (
    "OrtApi",
    "OrtCustomOpDomain",
    "OrtEpApi",
    "OrtEpDevice",
    "OrtEpGraphSupportInfo",
    "OrtGraph",
    "OrtHardwareDevice",
    "OrtKernelContext",
    "OrtKernelInfo",
    "OrtKeyValuePairs",
    "OrtLogger",
    "OrtMemoryDevice",
    "OrtMemoryInfo",
    "OrtNode",
    "OrtNodeComputeContext",
    "OrtOpAttr",
    "OrtProfilingEvent",
    "OrtProfilingEventsContainer",
    "OrtRunOptions",
    "OrtSessionOptions",
    "OrtShapeInferContext",
    "OrtStatus",
    "OrtSyncStream",
    "OrtTensorTypeAndShapeInfo",
    "OrtTypeInfo",
    "OrtValue",
    "OrtValueInfo",
)

ORT_API: Final = _functions(
    """
    0    OrtStatus *CreateStatus(int32_t code, const char *message)
    2    const char *GetErrorMessage(const OrtStatus *status)
    26   OrtStatus *CreateCustomOpDomain(const char *name, OrtCustomOpDomain **domain)
    27   OrtStatus *CustomOpDomain_Add(OrtCustomOpDomain *domain, const OrtCustomOp *op)
    28   OrtStatus *AddCustomOpDomain(OrtSessionOptions *options, OrtCustomOpDomain *domain)
    53   OrtStatus *GetStringTensorDataLength(const OrtValue *value, size_t *length)
    54   OrtStatus *GetStringTensorContent(const OrtValue *value, void *text, size_t length, size_t *offsets, size_t count)
    55   OrtStatus *CastTypeInfoToTensorInfo(const OrtTypeInfo *type, const OrtTensorTypeAndShapeInfo **tensor)
    56   OrtStatus *GetOnnxTypeFromTypeInfo(const OrtTypeInfo *type, int32_t *kind)
    57   OrtStatus *CreateTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo **tensor)
    58   OrtStatus *SetTensorElementType(OrtTensorTypeAndShapeInfo *tensor, int32_t element_type)
    59   OrtStatus *SetDimensions(OrtTensorTypeAndShapeInfo *tensor, const int64_t *sizes, size_t rank)
    60   OrtStatus *GetTensorElementType(const OrtTensorTypeAndShapeInfo *tensor, int32_t *element_type)
    61   OrtStatus *GetDimensionsCount(const OrtTensorTypeAndShapeInfo *tensor, size_t *rank)
    62   OrtStatus *GetDimensions(const OrtTensorTypeAndShapeInfo *tensor, int64_t *sizes, size_t rank)
    63   OrtStatus *GetSymbolicDimensions(const OrtTensorTypeAndShapeInfo *tensor, const char **symbols, size_t rank)
    67   OrtStatus *GetValueType(const OrtValue *value, int32_t *kind)
    76   OrtStatus *AllocatorFree(OrtAllocator *allocator, void *memory)
    78   OrtStatus *GetAllocatorWithDefaultOptions(OrtAllocator **allocator)
    85   OrtStatus *KernelInfoGetAttribute_float(const OrtKernelInfo *info, const char *name, float *number)
    86   OrtStatus *KernelInfoGetAttribute_int64(const OrtKernelInfo *info, const char *name, int64_t *integer)
    87   OrtStatus *KernelInfoGetAttribute_string(const OrtKernelInfo *info, const char *name, char *text, size_t *size)
    88   OrtStatus *KernelContext_GetInputCount(const OrtKernelContext *context, size_t *count)
    90   OrtStatus *KernelContext_GetInput(const OrtKernelContext *context, size_t index, const OrtValue **value)
    91   OrtStatus *KernelContext_GetOutput(OrtKernelContext *context, size_t index, const int64_t *sizes, size_t rank, OrtValue **value)
    93   void ReleaseStatus(OrtStatus *status)
    94   void ReleaseMemoryInfo(OrtMemoryInfo *info)
    96   void ReleaseValue(OrtValue *value)
    98   void ReleaseTypeInfo(OrtTypeInfo *type)
    99   void ReleaseTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo *tensor)
    130  OrtStatus *AddSessionConfigEntry(OrtSessionOptions *options, const char *key, const char *value)
    162  OrtStatus *KernelInfoGetAttributeArray_float(const OrtKernelInfo *info, const char *name, float *numbers, size_t *count)
    163  OrtStatus *KernelInfoGetAttributeArray_int64(const OrtKernelInfo *info, const char *name, int64_t *integers, size_t *count)
    211  OrtStatus *CreateOpAttr(const char *name, const void *data, int length, int32_t type, OrtOpAttr **attribute)
    212  void ReleaseOpAttr(OrtOpAttr *attribute)
    230  OrtStatus *KernelInfo_GetInputCount(const OrtKernelInfo *info, size_t *count)
    231  OrtStatus *KernelInfo_GetOutputCount(const OrtKernelInfo *info, size_t *count)
    232  OrtStatus *KernelInfo_GetInputName(const OrtKernelInfo *info, size_t index, char *name, size_t *size)
    233  OrtStatus *KernelInfo_GetOutputName(const OrtKernelInfo *info, size_t index, char *name, size_t *size)
    234  OrtStatus *KernelInfo_GetInputTypeInfo(const OrtKernelInfo *info, size_t index, OrtTypeInfo **type)
    235  OrtStatus *KernelInfo_GetOutputTypeInfo(const OrtKernelInfo *info, size_t index, OrtTypeInfo **type)
    236  OrtStatus *KernelInfoGetAttribute_tensor(const OrtKernelInfo *info, const char *name, OrtAllocator *allocator, OrtValue **value)
    244  OrtStatus *KernelInfo_GetNodeName(const OrtKernelInfo *info, char *name, size_t *size)
    247  OrtStatus *Logger_LogMessage(const OrtLogger *logger, int32_t level, const char *message, const char *file, int line, const char *function)
    248  OrtStatus *Logger_GetLoggingSeverityLevel(const OrtLogger *logger, int32_t *level)
    249  OrtStatus *KernelInfoGetConstantInput_tensor(const OrtKernelInfo *info, size_t index, int *constant, const OrtValue **value)
    267  OrtStatus *ShapeInferContext_GetInputCount(const OrtShapeInferContext *context, size_t *count)
    268  OrtStatus *ShapeInferContext_GetInputTypeShape(const OrtShapeInferContext *context, size_t index, OrtTensorTypeAndShapeInfo **tensor)
    269  OrtStatus *ShapeInferContext_GetAttribute(const OrtShapeInferContext *context, const char *name, const OrtOpAttr **attribute)
    270  OrtStatus *ShapeInferContext_SetOutputTypeShape(const OrtShapeInferContext *context, size_t index, const OrtTensorTypeAndShapeInfo *tensor)
    271  OrtStatus *SetSymbolicDimensions(OrtTensorTypeAndShapeInfo *tensor, const char **symbols, size_t rank)
    272  OrtStatus *ReadOpAttr(const OrtOpAttr *attribute, int32_t type, void *data, size_t size, size_t *needed)
    289  OrtStatus *GetValueInfoName(const OrtValueInfo *info, const char **name)
    290  OrtStatus *GetValueInfoTypeInfo(const OrtValueInfo *info, const OrtTypeInfo **type)
    295  void CreateKeyValuePairs(OrtKeyValuePairs **pairs)
    296  void AddKeyValuePair(OrtKeyValuePairs *pairs, const char *key, const char *value)
    298  void GetKeyValuePairs(const OrtKeyValuePairs *pairs, const char *const **keys, const char *const **values, size_t *count)
    300  void ReleaseKeyValuePairs(OrtKeyValuePairs *pairs)
    307  int32_t HardwareDevice_Type(const OrtHardwareDevice *device)
    308  uint32_t HardwareDevice_VendorId(const OrtHardwareDevice *device)
    317  const OrtEpApi *GetEpApi(void)
    320  OrtStatus *CreateMemoryInfo_V2(const char *name, int32_t device_type, uint32_t vendor_id, int32_t device_id, int32_t memory_type, size_t alignment, int32_t allocator_type, OrtMemoryInfo **info)
    326  OrtStatus *ValueInfo_GetInitializerValue(const OrtValueInfo *info, const OrtValue **value)
    331  OrtStatus *ValueInfo_IsConstantInitializer(const OrtValueInfo *info, bool *constant)
    332  OrtStatus *ValueInfo_IsFromOuterScope(const OrtValueInfo *info, bool *outer)
    333  OrtStatus *Graph_GetName(const OrtGraph *graph, const char **name)
    336  OrtStatus *Graph_GetNumOperatorSets(const OrtGraph *graph, size_t *count)
    337  OrtStatus *Graph_GetOperatorSets(const OrtGraph *graph, const char **domains, int64_t *versions, size_t count)
    338  OrtStatus *Graph_GetNumInputs(const OrtGraph *graph, size_t *count)
    339  OrtStatus *Graph_GetInputs(const OrtGraph *graph, const OrtValueInfo **infos, size_t count)
    340  OrtStatus *Graph_GetNumOutputs(const OrtGraph *graph, size_t *count)
    341  OrtStatus *Graph_GetOutputs(const OrtGraph *graph, const OrtValueInfo **infos, size_t count)
    342  OrtStatus *Graph_GetNumInitializers(const OrtGraph *graph, size_t *count)
    343  OrtStatus *Graph_GetInitializers(const OrtGraph *graph, const OrtValueInfo **infos, size_t count)
    344  OrtStatus *Graph_GetNumNodes(const OrtGraph *graph, size_t *count)
    345  OrtStatus *Graph_GetNodes(const OrtGraph *graph, const OrtNode **nodes, size_t count)
    346  OrtStatus *Graph_GetParentNode(const OrtGraph *graph, const OrtNode **node)
    349  OrtStatus *Node_GetName(const OrtNode *node, const char **name)
    350  OrtStatus *Node_GetOperatorType(const OrtNode *node, const char **op_type)
    351  OrtStatus *Node_GetDomain(const OrtNode *node, const char **domain)
    352  OrtStatus *Node_GetSinceVersion(const OrtNode *node, int *version)
    353  OrtStatus *Node_GetNumInputs(const OrtNode *node, size_t *count)
    354  OrtStatus *Node_GetInputs(const OrtNode *node, const OrtValueInfo **infos, size_t count)
    355  OrtStatus *Node_GetNumOutputs(const OrtNode *node, size_t *count)
    356  OrtStatus *Node_GetOutputs(const OrtNode *node, const OrtValueInfo **infos, size_t count)
    357  OrtStatus *Node_GetNumImplicitInputs(const OrtNode *node, size_t *count)
    358  OrtStatus *Node_GetImplicitInputs(const OrtNode *node, const OrtValueInfo **infos, size_t count)
    359  OrtStatus *Node_GetNumAttributes(const OrtNode *node, size_t *count)
    360  OrtStatus *Node_GetAttributes(const OrtNode *node, const OrtOpAttr **attributes, size_t count)
    362  OrtStatus *OpAttr_GetTensorAttributeAsOrtValue(const OrtOpAttr *attribute, OrtValue **value)
    363  OrtStatus *OpAttr_GetType(const OrtOpAttr *attribute, int32_t *type)
    364  OrtStatus *OpAttr_GetName(const OrtOpAttr *attribute, const char **name)
    365  OrtStatus *Node_GetNumSubgraphs(const OrtNode *node, size_t *count)
    366  OrtStatus *Node_GetSubgraphs(const OrtNode *node, const OrtGraph **graphs, size_t count, const char **attribute_names)
    368  OrtStatus *Node_GetEpName(const OrtNode *node, const char **name)
    378  OrtStatus *GetTensorData(const OrtValue *value, const void **data)
    379  OrtStatus *GetSessionOptionsConfigEntries(const OrtSessionOptions *options, OrtKeyValuePairs **pairs)
    390  bool TensorTypeAndShape_HasShape(const OrtTensorTypeAndShapeInfo *tensor)
    391  OrtStatus *KernelInfo_GetConfigEntries(const OrtKernelInfo *info, OrtKeyValuePairs **pairs)
    414  OrtStatus *GetTensorElementTypeAndShapeDataReference(const OrtValue *value, int32_t *element_type, const int64_t **sizes, size_t *rank)
    417  OrtStatus *KernelInfoGetAttributeArray_string(const OrtKernelInfo *info, const char *name, OrtAllocator *allocator, char ***texts, size_t *count)
    """  # noqa: E501
)

EP_API: Final = _functions(
    """
    0    OrtStatus *CreateEpDevice(OrtEpFactory *factory, const OrtHardwareDevice *hardware, const OrtKeyValuePairs *metadata, const OrtKeyValuePairs *options, OrtEpDevice **device)
    2    OrtStatus *EpGraphSupportInfo_AddNodesToFuse(OrtEpGraphSupportInfo *support, const OrtNode *const *nodes, size_t count, const OrtNodeFusionOptions *options)
    5    OrtStatus *EpDevice_AddAllocatorInfo(OrtEpDevice *device, const OrtMemoryInfo *info)
    7    const OrtMemoryDevice *Value_GetMemoryDevice(const OrtValue *value)
    9    int32_t MemoryDevice_GetDeviceType(const OrtMemoryDevice *device)
    11   uint32_t MemoryDevice_GetVendorId(const OrtMemoryDevice *device)
    65   OrtStatus *CreateProfilingEvent(int32_t category, int32_t process_id, int32_t thread_id, const char *name, int64_t timestamp_us, int64_t duration_us, const char *const *keys, const char *const *values, size_t count, OrtProfilingEvent **event)
    66   void ReleaseProfilingEvent(OrtProfilingEvent *event)
    72   OrtStatus *ProfilingEventsContainer_AddEvents(OrtProfilingEventsContainer *container, const OrtProfilingEvent *const *events, size_t count)
    """  # noqa: E501
)

# The last members of OrtCustomOp and OrtAllocator are opgraft's own, beyond what ONNX Runtime looks at. Characteristic
# 1 is optional, 2 is variadic. Outputs before a variadic one must be there all the same, by ONNX's rule; and beside
# several inputs of any type, ONNX Runtime takes outputs of any type only if they are optional.
STRUCTURES: Final[dict[str, tuple[Member, ...]]] = {
    "OrtEpFactory": _members(
        """
        0   uint32_t ort_version_supported
        1   const char *GetName(const OrtEpFactory *self) = { (void)self; return "MLXExecutionProvider"; }
        2   const char *GetVendor(const OrtEpFactory *self) = { (void)self; return "opgraft"; }
        3   OrtStatus *GetSupportedDevices(OrtEpFactory *self, const OrtHardwareDevice *const *hardware, size_t hardware_count, OrtEpDevice **devices, size_t capacity, size_t *count)
        4   OrtStatus *CreateEp(OrtEpFactory *self, const OrtHardwareDevice *const *hardware, const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options, const OrtLogger *logger, OrtEp **ep)
        5   void ReleaseEp(OrtEpFactory *self, OrtEp *ep)
        6   uint32_t GetVendorId(const OrtEpFactory *self) = { (void)self; return 0; }
        7   const char *GetVersion(const OrtEpFactory *self) = { (void)self; return ep_version; }
        8   ValidateCompiledModelCompatibilityInfo
        9   OrtStatus *CreateAllocator(OrtEpFactory *self, const OrtMemoryInfo *info, const OrtKeyValuePairs *options, OrtAllocator **allocator)
        10  void ReleaseAllocator(OrtEpFactory *self, OrtAllocator *allocator)
        11  OrtStatus *CreateDataTransfer(OrtEpFactory *self, OrtDataTransferImpl **transfer)
        12  bool IsStreamAware(const OrtEpFactory *self) = { (void)self; return false; }
        13  CreateSyncStreamForDevice
        14  GetHardwareDeviceIncompatibilityDetails
        15  CreateExternalResourceImporterForDevice
        16  OrtStatus *GetNumCustomOpDomains(OrtEpFactory *self, size_t *count)
        17  OrtStatus *GetCustomOpDomains(OrtEpFactory *self, OrtCustomOpDomain **domains, size_t count)
        18  InitGraphicsInterop
        19  DeinitGraphicsInterop
        20  SelectBestModelCandidate
        """  # noqa: E501
    ),
    "OrtEp": _members(
        """
        0   uint32_t ort_version_supported
        1   const char *GetName(const OrtEp *self) = { (void)self; return "MLXExecutionProvider"; }
        2   OrtStatus *GetCapability(OrtEp *self, const OrtGraph *graph, OrtEpGraphSupportInfo *support)
        3   OrtStatus *Compile(OrtEp *self, const OrtGraph **graphs, const OrtNode **fused_nodes, size_t count, OrtNodeComputeInfo **infos, OrtNode **context_nodes)
        4   void ReleaseNodeComputeInfos(OrtEp *self, OrtNodeComputeInfo **infos, size_t count)
        5   GetPreferredDataLayout
        6   ShouldConvertDataLayoutForOp
        7   SetDynamicOptions
        8   OrtStatus *OnRunStart(OrtEp *self, const OrtRunOptions *options)
        9   OrtStatus *OnRunEnd(OrtEp *self, const OrtRunOptions *options, bool sync_stream)
        10  CreateAllocator
        11  CreateSyncStreamForDevice
        12  GetCompiledModelCompatibilityInfo
        13  GetKernelRegistry
        14  OrtStatus *IsConcurrentRunSupported(OrtEp *self, bool *supported) = { (void)self; *supported = true; return NULL; }
        15  Sync
        16  OrtStatus *CreateProfiler(OrtEp *self, OrtEpProfilerImpl **profiler)
        17  IsGraphCaptureEnabled
        18  IsGraphCaptured
        19  ReplayGraph
        20  GetGraphCaptureNodeAssignmentPolicy
        21  GetAvailableResource
        22  OrtStatus *OnSessionInitializationEnd(OrtEp *self)
        23  GetDefaultMemoryDevice
        24  ReleaseCapturedGraph
        25  GetWeightlessSupport
        """  # noqa: E501
    ),
    "OrtNodeComputeInfo": _members(
        """
        0   uint32_t ort_version_supported
        1   OrtStatus *CreateState(OrtNodeComputeInfo *self, OrtNodeComputeContext *context, void **state) = { (void)context; *state = self; return NULL; }
        2   OrtStatus *Compute(OrtNodeComputeInfo *self, void *state, OrtKernelContext *context)
        3   void ReleaseState(OrtNodeComputeInfo *self, void *state) = { (void)self; (void)state; }
        """  # noqa: E501
    ),
    "OrtEpProfilerImpl": _members(
        """
        0   uint32_t ort_version_supported
        1   void Release(OrtEpProfilerImpl *self)
        2   OrtStatus *StartProfiling(OrtEpProfilerImpl *self, int64_t offset_ns)
        3   StartEvent
        4   StopEvent
        5   OrtStatus *EndProfiling(OrtEpProfilerImpl *self, OrtProfilingEventsContainer *container)
        """
    ),
    "OrtCustomOp": _members(
        """
        0   uint32_t version
        1   CreateKernel
        2   const char *GetName(const OrtCustomOp *self) = { return self->facts.name; }
        3   const char *GetExecutionProviderType(const OrtCustomOp *self) = { (void)self; return "CPUExecutionProvider"; }
        4   int32_t GetInputType(const OrtCustomOp *self, size_t index) = { return self->facts.input_types[index]; }
        5   size_t GetInputTypeCount(const OrtCustomOp *self) = { return self->facts.inputs; }
        6   int32_t GetOutputType(const OrtCustomOp *self, size_t index) = { const OpFacts *facts = &self->facts; return index < facts->outputs ? facts->output_types[index] : 0; }
        7   size_t GetOutputTypeCount(const OrtCustomOp *self) = { return self->facts.outputs + 1; }
        8   KernelCompute
        9   void KernelDestroy(void *kernel)
        10  int32_t GetInputCharacteristic(const OrtCustomOp *self, size_t index) = { return self->facts.characteristics[index]; }
        11  int32_t GetOutputCharacteristic(const OrtCustomOp *self, size_t index) = { return index < self->facts.outputs ? 1 : 2; }
        12  int32_t GetInputMemoryType(const OrtCustomOp *self, size_t index) = { (void)self; (void)index; return 0; }
        13  int GetVariadicInputMinArity(const OrtCustomOp *self) = { (void)self; return 0; }
        14  int GetVariadicInputHomogeneity(const OrtCustomOp *self) = { return self->facts.homogeneous; }
        15  int GetVariadicOutputMinArity(const OrtCustomOp *self) = { (void)self; return 0; }
        16  int GetVariadicOutputHomogeneity(const OrtCustomOp *self) = { (void)self; return 0; }
        17  OrtStatus *CreateKernelV2(const OrtCustomOp *self, const OrtApi *api, const OrtKernelInfo *info, void **kernel)
        18  OrtStatus *KernelComputeV2(void *kernel, OrtKernelContext *context)
        19  OrtStatus *InferOutputShapeFn(const OrtCustomOp *self, OrtShapeInferContext *context)
        20  int GetStartVersion(const OrtCustomOp *self) = { return self->facts.since; }
        21  int GetEndVersion(const OrtCustomOp *self) = { (void)self; return INT32_MAX; }
        22  GetMayInplace
        23  ReleaseMayInplace
        24  GetAliasMap
        25  ReleaseAliasMap
        26  OpFacts facts
        """  # noqa: E501
    ),
    "OrtAllocator": _members(
        """
        0   uint32_t version
        1   uintptr_t Alloc(OrtAllocator *self, size_t size)
        2   void Free(OrtAllocator *self, uintptr_t address)
        3   const OrtMemoryInfo *Info(const OrtAllocator *self) = { return (const OrtMemoryInfo *)self->info; }
        4   Reserve
        5   GetStats
        6   AllocOnStream
        7   Shrink
        8   uintptr_t info
        """
    ),
    "OrtDataTransferImpl": _members(
        """
        0   uint32_t ort_version_supported
        1   void Release(OrtDataTransferImpl *self) = { free(self); }
        2   bool CanCopy(const OrtDataTransferImpl *self, const OrtMemoryDevice *source, const OrtMemoryDevice *target) = { (void)self; return can_copy(source, target); }
        3   OrtStatus *CopyTensors(OrtDataTransferImpl *self, const OrtValue **sources, OrtValue **targets, OrtSyncStream **streams, size_t count)
        """  # noqa: E501
    ),
    "OrtNodeFusionOptions": _members(
        """
        0   uint32_t ort_version_supported
        1   bool drop_constant_initializers
        """
    ),
}

FREES: Final = {
    "OrtEpFactory_ReleaseAllocator": "free(allocator);",
    "OrtEpFactory_ReleaseEp": "free(ep);",
    "OrtEp_ReleaseNodeComputeInfos": "free_all((void *const *)infos, count);",
    "OrtEpProfilerImpl_Release": "free(self);",
}
"""What releases of structures that opgraft made end with, once Python has let go of them."""
