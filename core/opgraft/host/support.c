/* The hand-written part of opgraft.host._ep. It stands between the declarations and the code that build_ffi.py makes:
 * what comes before the marked line is state that the generated code uses, what comes after it uses that code. */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#include <windows.h>
#define reserve(size) VirtualAlloc(NULL, size, MEM_RESERVE, PAGE_NOACCESS)
#define EXPORTED __declspec(dllexport)
#define rest(milliseconds) Sleep(milliseconds)
#else
#include <sys/mman.h>
#include <time.h>
#define reserve(size) mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_NORESERVE, -1, 0)
#define EXPORTED __attribute__((visibility("default")))
static void rest(int milliseconds) {
    struct timespec pause = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    nanosleep(&pause, NULL);
}
#endif

struct OrtApiBase {
    const void *(*GetApi)(uint32_t version);
    const char *(*GetVersionString)(void);
};

/* Calls from Python into ONNX Runtime keep the GIL. They are short, and some are made while ONNX Runtime holds a lock:
 * another thread that got the interpreter meanwhile, and asked ONNX Runtime for anything, would wait for that lock and
 * never give the interpreter back. What waits lets go of the GIL by itself. */
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS {
#define Py_END_ALLOW_THREADS }

static void *const *ort_table;
static void *const *ep_table;
static uint32_t api_version_in_use;
static char ep_version[64] = "0.0.0";

/* Callbacks run Python only while the interpreter is up. A callback counts itself before it looks at `alive`, so once
 * shut_down has cleared `alive` and seen the count at zero, none is in Python and none will be. */
static atomic_bool alive = true;
static atomic_int running;
static atomic_bool threaded; /* callbacks came from more than one thread */
static const char *_Atomic first_thread;
static _Thread_local char this_thread; /* its address is the thread's identity */
static _Thread_local bool shuts_down;
static _Thread_local bool runs_python;
static _Thread_local int entered;    /* callbacks of this thread, one inside the other */
static _Thread_local int interrupts; /* how often Ctrl-C ended the callback that is under way */

static void note_thread(void) {
    const char *none = NULL;
    if (!atomic_compare_exchange_strong(&first_thread, &none, &this_thread) && none != &this_thread)
        atomic_store(&threaded, true);
}

/* In no stable ABI, and yet in every version. */
PyAPI_FUNC(int) PyGILState_Check(void);

/* Longer than this no thread rests, so that what waits for it goes on: functions that are called at the end may, before
 * the interpreter itself begins to. */
#define REST_MILLISECONDS 100
#define MOST_RESTS 100
#define MOST_RESTS_BEFORE 10

/* A thread that comes back from a callback without the GIL asks for it next, inside of ONNX Runtime. Once the
 * interpreter has begun to end, Python up to 3.13 answers by ending the thread: it is unwound by force, through C++
 * frames that do not survive it. So it rests here until the process ends. A thread that has the GIL, or never runs
 * Python, goes on. */
static void rest_until_the_end(void) {
    if (shuts_down) return;
    if (Py_IsInitialized() ? !PyGILState_GetThisThreadState() || PyGILState_Check() : !runs_python) return;
    for (int rests = 0; rests < (Py_IsInitialized() ? MOST_RESTS_BEFORE : MOST_RESTS); ++rests) rest(REST_MILLISECONDS);
}

static bool enter(void) {
    if (entered) { /* one asked ONNX Runtime for what ends in another */
        ++entered;
        return true;
    }
    note_thread();
    atomic_fetch_add(&running, 1);
    if (atomic_load(&alive)) {
        runs_python = true;
        ++entered;
        return true;
    }
    atomic_fetch_sub(&running, 1);
    rest_until_the_end();
    return false;
}

static void leave(void) {
    if (--entered) return;
    atomic_fetch_sub(&running, 1);
    if (interrupts) PyErr_SetInterrupt();
    interrupts = 0;
    if (!atomic_load(&alive)) rest_until_the_end();
}

/* In a process that was just forked there is no other thread. */
static void forget_other_threads(void) { atomic_store(&running, entered ? 1 : 0); }

/* Ctrl-C in a callback: it comes again once the callback is over, and so reaches the user's code. */
static void interrupt_again(void) { ++interrupts; }

/* What is released has to be: a release that Ctrl-C ended is done again, but not for ever. Those of Python leave what is
 * gone alone, and the memory of their structures to C, so that no other has their address meanwhile. */
#define MOST_INTERRUPTS 8
#define UNTIL_DONE(call) do { int before; do { before = interrupts; call; } while (before < interrupts && interrupts < MOST_INTERRUPTS); } while (0)

static void free_all(void *const *structures, size_t count) {
    for (size_t number = 0; number < count; ++number) free(structures[number]);
}

static bool can_copy(const OrtMemoryDevice *source, const OrtMemoryDevice *target);

/* The generated code stands here. */

#define TRY(call) do { OrtStatus *status_ = (call); if (status_) return status_; } while (0)

/* What Python returns for success. Null, which is what cffi returns where even the handling of an error failed, must not
 * be taken for it. */
static char done_place;
static OrtStatus *const done = (OrtStatus *)&done_place;

static OrtStatus *outcome(OrtStatus *status) {
    if (status == done) return NULL;
    return status ? status : ort_CreateStatus(1, "opgraft: a callback failed, and so did the telling of why; "
                                                 "was the recursion limit near, or memory at its end?");
}

/* The answer of a callback that comes too late. */
static OrtStatus *refusal(void) { return ort_CreateStatus(1, "opgraft: the Python interpreter is shutting down"); }

/* Ends the callbacks, and waits until none is under way; and a while more where there are other threads, for one that
 * has just left a callback is still on its way through ONNX Runtime: into the next callback, where it rests, or out. */
static bool shut_down(int milliseconds) {
    PyThreadState *thread = PyEval_SaveThread();
    note_thread();
    shuts_down = true;
    atomic_store(&alive, false);
    for (int quiet = atomic_load(&threaded) ? 250 : 0; milliseconds > 0; --milliseconds) {
        bool runs = atomic_load(&running) > 0;
        if (!runs && quiet-- <= 0) break;
        rest(1);
    }
    PyEval_RestoreThread(thread);
    return atomic_load(&running) == 0;
}

/* An allocator of MLX, as compilers lay out objects with virtual functions: the first allocates. */
#define ALLOCATOR_TABLE 16
#define BEFORE_TABLE 2
typedef void *(*Allocate)(void *allocator, size_t size);
static Allocate allocate;
static void (*raise_bad_alloc)(void);

/* What is large is asked for beforehand, for MLX counts it as in use even where it gets nothing. */
#define LARGE_ALLOCATION (1 << 20)

static void *allocate_or_raise(void *allocator, size_t size) {
    if (size >= LARGE_ALLOCATION) {
        void *volatile tried = malloc(size + sizeof size);
        if (!tried) raise_bad_alloc();
        free(tried);
    }
    void *memory = allocate(allocator, size);
    if (!memory && size) raise_bad_alloc();
    return memory;
}

/* Threads may come here at the same time, or one after the other: the GIL is held, and the first has done it. */
static void check_allocations(void *allocator, void *raising) {
    static void *table[ALLOCATOR_TABLE];
    if (allocate) return;
    void ***functions = (void ***)allocator;
    memcpy(table, *functions - BEFORE_TABLE, sizeof table);
    allocate = (Allocate)table[BEFORE_TABLE];
    raise_bad_alloc = (void (*)(void))raising;
    table[BEFORE_TABLE] = (void *)allocate_or_raise;
    *functions = table + BEFORE_TABLE;
}

static uint32_t api_version(void) { return api_version_in_use; }

static const char *ort_version(const OrtApiBase *base) { return base->GetVersionString(); }

static bool attach(const OrtApiBase *base, uint32_t api_version) {
    void *const *table = (void *const *)base->GetApi(api_version);
    if (!table) return false;
    ort_table = table;
    ep_table = (void *const *)ort_GetEpApi();
    api_version_in_use = api_version;
    return ep_table != NULL;
}

/* A device's memory, as a GPU's of no vendor; and what is the CPU's. */
static bool is_device(const OrtMemoryDevice *memory) {
    return ep_MemoryDevice_GetDeviceType(memory) == 1 && ep_MemoryDevice_GetVendorId(memory) == 0;
}
static bool is_host(const OrtMemoryDevice *memory) { return ep_MemoryDevice_GetDeviceType(memory) == 0; }

static bool can_copy(const OrtMemoryDevice *source, const OrtMemoryDevice *target) {
    return is_device(source) ? is_device(target) || is_host(target) : is_host(source) && is_device(target);
}

/* So many addresses that nothing lies at, nor ever will; 0 where there are none. */
static uintptr_t reserve_addresses(size_t size) {
    void *address = reserve(size);
    return address == (void *)-1 ? 0 : (uintptr_t)address;
}

static OrtStatus *read_tensor(const OrtValue *value, TensorView *view) {
    int32_t kind;
    const void *data = NULL;
    view->data = NULL;
    view->element_type = 0;
    view->on_device = false;
    TRY(ort_GetValueType(value, &kind));
    if (kind != 1) return NULL;
    TRY(ort_GetTensorElementTypeAndShapeDataReference(value, &view->element_type, &view->sizes, &view->rank));
    if (view->element_type == 8) return NULL; /* strings have no flat storage */
    TRY(ort_GetTensorData(value, &data));
    view->data = (void *)data;
    view->address = (uintptr_t)data;
    view->on_device = !is_host(ep_Value_GetMemoryDevice(value));
    return NULL;
}

static OrtStatus *read_inputs(const OrtKernelContext *context, const size_t *indices, TensorView *views, size_t count) {
    for (size_t number = 0; number < count; ++number) {
        const OrtValue *value = NULL;
        TRY(ort_KernelContext_GetInput(context, indices[number], &value));
        if (!value) return ort_CreateStatus(1, "opgraft: a kernel was run without one of its inputs");
        TRY(read_tensor(value, &views[number]));
    }
    return NULL;
}

static OrtStatus *open_output(OrtKernelContext *context, size_t index, const int64_t *sizes, size_t rank,
                              TensorView *view) {
    OrtValue *value = NULL;
    TRY(ort_KernelContext_GetOutput(context, index, sizes, rank, &value));
    return read_tensor(value, view);
}

static OrtStatus *read_tensor_type(const OrtTensorTypeAndShapeInfo *tensor, ValueView *view) {
    TRY(ort_GetTensorElementType(tensor, &view->element_type));
    TRY(ort_GetDimensionsCount(tensor, &view->rank));
    view->has_shape = ort_TensorTypeAndShape_HasShape(tensor) && view->rank <= MAX_RANK;
    if (!view->has_shape) return NULL;
    TRY(ort_GetDimensions(tensor, view->sizes, view->rank));
    return ort_GetSymbolicDimensions(tensor, view->symbols, view->rank);
}

/* `type` may be null; what is read points into it. */
static OrtStatus *read_type(const OrtTypeInfo *type, ValueView *view) {
    const OrtTensorTypeAndShapeInfo *tensor = NULL;
    view->kind = view->element_type = 0;
    view->has_shape = false;
    if (!type) return NULL;
    TRY(ort_GetOnnxTypeFromTypeInfo(type, &view->kind));
    TRY(ort_CastTypeInfoToTensorInfo(type, &tensor));
    return tensor ? read_tensor_type(tensor, view) : NULL;
}

static OrtStatus *read_value(const OrtValueInfo *info, ValueView *view) {
    const OrtTypeInfo *type = NULL;
    TRY(ort_GetValueInfoName(info, &view->name));
    TRY(ort_ValueInfo_IsConstantInitializer(info, &view->constant));
    TRY(ort_ValueInfo_IsFromOuterScope(info, &view->outer));
    TRY(ort_GetValueInfoTypeInfo(info, &type));
    return read_type(type, view);
}

/* The type of an input while a schema's inference runs; an absent one has element type 0. */
static OrtStatus *read_inferred_input(const OrtShapeInferContext *context, size_t index, ValueView *view) {
    OrtTensorTypeAndShapeInfo *tensor = NULL;
    view->kind = 1;
    TRY(ort_ShapeInferContext_GetInputTypeShape(context, index, &tensor));
    return read_tensor_type(tensor, view);
}

/* `view` has the element type and, if has_shape, sizes and names of dimensions: "" where the size counts. */
static OrtStatus *set_inferred_output(OrtShapeInferContext *context, size_t index, ValueView *view) {
    OrtTensorTypeAndShapeInfo *tensor = NULL;
    TRY(ort_CreateTensorTypeAndShapeInfo(&tensor));
    OrtStatus *status = ort_SetTensorElementType(tensor, view->element_type);
    if (!status && view->has_shape) status = ort_SetDimensions(tensor, view->sizes, view->rank);
    if (!status && view->has_shape) status = ort_SetSymbolicDimensions(tensor, view->symbols, view->rank);
    if (!status) status = ort_ShapeInferContext_SetOutputTypeShape(context, index, tensor);
    ort_ReleaseTensorTypeAndShapeInfo(tensor);
    return status;
}

static OrtStatus *read_node(const OrtNode *node, NodeView *view) {
    TRY(ort_Node_GetName(node, &view->name));
    TRY(ort_Node_GetOperatorType(node, &view->op_type));
    TRY(ort_Node_GetDomain(node, &view->domain));
    TRY(ort_Node_GetEpName(node, &view->ep_name));
    TRY(ort_Node_GetSinceVersion(node, &view->since_version));
    TRY(ort_Node_GetNumInputs(node, &view->inputs));
    TRY(ort_Node_GetNumOutputs(node, &view->outputs));
    TRY(ort_Node_GetNumImplicitInputs(node, &view->implicit_inputs));
    TRY(ort_Node_GetNumAttributes(node, &view->attributes));
    return ort_Node_GetNumSubgraphs(node, &view->bodies);
}

/* `infos` has room for the inputs, the outputs and the implicit inputs, which it gets in that order. */
static OrtStatus *read_node_values(const OrtNode *node, const NodeView *view, const OrtValueInfo **infos) {
    TRY(ort_Node_GetInputs(node, infos, view->inputs));
    infos += view->inputs;
    TRY(ort_Node_GetOutputs(node, infos, view->outputs));
    infos += view->outputs;
    return view->implicit_inputs ? ort_Node_GetImplicitInputs(node, infos, view->implicit_inputs) : NULL;
}

/* A single number is read at once; for the others `size` says how many bytes ReadOpAttr wants. */
static OrtStatus *read_attribute(const OrtOpAttr *attribute, AttributeView *view) {
    OrtStatus *status;
    view->size = 0;
    view->type = 0;
    TRY(ort_OpAttr_GetName(attribute, &view->name));
    status = ort_OpAttr_GetType(attribute, &view->type);
    if (status) { /* a type that the C API does not have */
        ort_ReleaseStatus(status);
        view->type = 0;
        return NULL;
    }
    view->integer = 0; /* what a number means that the model leaves out */
    view->number = 0;
    switch (view->type) {
        case 1: status = ort_ReadOpAttr(attribute, 1, &view->integer, sizeof view->integer, &view->size); break;
        case 3: status = ort_ReadOpAttr(attribute, 3, &view->number, sizeof view->number, &view->size); break;
        case 2: case 4: case 5: case 6:
            /* With no room at all it fails, and tells the size; an empty list succeeds. */
            status = ort_ReadOpAttr(attribute, view->type, NULL, 0, &view->size);
    }
    if (status) ort_ReleaseStatus(status);
    return NULL;
}

/* ONNX Runtime's way in. It works in any process that runs Python, whether or not that has imported opgraft: the
 * structures are made by opgraft.host.library, in the copy of this module that Python itself has loaded. */

static OrtStatus *status_of_python_error(OrtStatus *(*create)(int32_t code, const char *message)) {
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *text = value ? PyObject_Str(value) : NULL;
    PyObject *bytes = text ? PyUnicode_AsUTF8String(text) : NULL;
    const char *message = bytes ? PyBytes_AsString(bytes) : NULL;
    OrtStatus *status = create(1, message && *message ? message : "opgraft: its Python side could not be loaded");
    PyErr_Clear();
    Py_XDECREF(bytes);
    Py_XDECREF(text);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return status;
}

/* Slot 0 of every version's table makes a status. */
typedef OrtStatus *(*Create)(int32_t code, const char *message);
static Create create_of(const OrtApiBase *base) { return (Create)((void *const *)base->GetApi(1))[0]; }

static const char no_python[] = "opgraft runs inside a Python process, and this process runs no Python (any more)";

/* These functions run Python too, so the end of the interpreter waits for them as it does for callbacks. */
static bool enter_python(PyGILState_STATE *state) {
    if (!Py_IsInitialized() || !enter()) return false;
    *state = PyGILState_Ensure();
    return true;
}

static void leave_python(PyGILState_STATE state) {
    PyGILState_Release(state);
    leave();
}

EXPORTED OrtStatus *CreateEpFactories(const char *registration_name, const OrtApiBase *base, const OrtLogger *logger,
                                      OrtEpFactory **factories, size_t capacity, size_t *count) {
    Create create = create_of(base);
    OrtStatus *status = NULL;
    PyGILState_STATE state;
    *count = 0;
    if (capacity < 1) return create(2, "opgraft needs room for one factory");
    if (!enter_python(&state)) return create(1, no_python);
    PyObject *module = PyImport_ImportModule("opgraft.host.library");
    PyObject *made = module ? PyObject_CallMethod(module, "create_factory", "yKK", registration_name,
                                                  (unsigned long long)(uintptr_t)base,
                                                  (unsigned long long)(uintptr_t)logger)
                            : NULL;
    unsigned long long factory = made ? PyLong_AsUnsignedLongLong(made) : 0;
    if (PyErr_Occurred()) {
        status = status_of_python_error(create);
    } else {
        factories[0] = (OrtEpFactory *)(uintptr_t)factory;
        *count = 1;
    }
    Py_XDECREF(made);
    Py_XDECREF(module);
    leave_python(state);
    return status;
}

EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
    PyGILState_STATE state;
    if (!enter_python(&state)) return NULL;
    for (bool again = true; again;) {
        PyObject *module = PyImport_ImportModule("opgraft.host.library");
        PyObject *done =
            module ? PyObject_CallMethod(module, "release_factory", "K", (unsigned long long)(uintptr_t)factory) : NULL;
        again = !done && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) && interrupts++ < MOST_INTERRUPTS;
        PyErr_Clear();
        Py_XDECREF(done);
        Py_XDECREF(module);
    }
    leave_python(state);
    return NULL;
}

/* What SessionOptions.register_custom_ops_library looks for. */
EXPORTED OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
    OrtStatus *status = NULL;
    PyGILState_STATE state;
    if (!enter_python(&state)) return create_of(base)(1, no_python);
    PyObject *module = PyImport_ImportModule("opgraft.host.library");
    PyObject *done = module ? PyObject_CallMethod(module, "register_custom_ops", "KK",
                                                  (unsigned long long)(uintptr_t)options,
                                                  (unsigned long long)(uintptr_t)base)
                            : NULL;
    if (!done) status = status_of_python_error(create_of(base));
    Py_XDECREF(done);
    Py_XDECREF(module);
    leave_python(state);
    return status;
}
