/* The BLAS functions that MLX's CPU backend multiplies matrices with, handed on to another BLAS.

MLX's wheels for Linux are linked with the reference BLAS. Where this library is loaded first, with its symbols for
everybody, the dynamic linker finds these functions before those, and MLX calls what `forward_to` was given.

Products with one row or one column, of which decoders are full, go to gemv: OpenBLAS's gemm reads the matrix at half of
its speed or less. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>

#define GEMM_PARAMETERS(scalar, element) \
    int order, int transpose_a, int transpose_b, int m, int n, int k, scalar alpha, const element *a, int lda, \
    const element *b, int ldb, scalar beta, element *c, int ldc
#define GEMM_ARGUMENTS order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc

#define GEMV_PARAMETERS(element) \
    int order, int transpose, int m, int n, element alpha, const element *a, int lda, const element *x, int step_x, \
    element beta, element *y, int step_y

enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

typedef void (*Sgemm)(GEMM_PARAMETERS(float, float));
typedef void (*Dgemm)(GEMM_PARAMETERS(double, double));
typedef void (*Cgemm)(GEMM_PARAMETERS(const void *, void));

typedef void (*Sgemv)(GEMV_PARAMETERS(float));
typedef void (*Dgemv)(GEMV_PARAMETERS(double));

static Sgemm sgemm;
static Dgemm dgemm;
static Cgemm cgemm;
static Sgemv sgemv;
static Dgemv dgemv;

/* Each defines a function that multiplies with gemv, or does nothing and returns false. What beta = 0 overwrites may be
 * no number, and gemv might multiply it with 0. */
#define DEFINE_TIMES_VECTOR(name, gemv, element) \
    static bool name(GEMM_PARAMETERS(element, element)) \
    { \
        if (order != ROW_MAJOR || m < 1 || n < 1 || k < 1 || (m > 1 && n > 1)) return false; \
        bool row = m == 1, a_plain = transpose_a == PLAIN, b_plain = transpose_b == PLAIN; \
        int step_c = row ? 1 : ldc; \
        if (beta == 0) \
            for (int i = 0; i < m * n; i++) c[(size_t)i * step_c] = 0; \
        if (row) \
            gemv(order, b_plain ? TRANSPOSED : PLAIN, b_plain ? k : n, b_plain ? n : k, alpha, b, ldb, a, \
                 a_plain ? 1 : lda, beta, c, step_c); \
        else \
            gemv(order, a_plain ? PLAIN : TRANSPOSED, a_plain ? m : k, a_plain ? k : m, alpha, a, lda, b, \
                 b_plain ? ldb : 1, beta, c, step_c); \
        return true; \
    }

DEFINE_TIMES_VECTOR(times_vector_of_floats, sgemv, float)
DEFINE_TIMES_VECTOR(times_vector_of_doubles, dgemv, double)

void cblas_sgemm(GEMM_PARAMETERS(float, float))
{
    if (!times_vector_of_floats(GEMM_ARGUMENTS)) sgemm(GEMM_ARGUMENTS);
}

void cblas_dgemm(GEMM_PARAMETERS(double, double))
{
    if (!times_vector_of_doubles(GEMM_ARGUMENTS)) dgemm(GEMM_ARGUMENTS);
}

void cblas_cgemm(GEMM_PARAMETERS(const void *, void)) { cgemm(GEMM_ARGUMENTS); }

/* Takes the addresses of functions with the same parameters. Nothing may be multiplied before. */
void forward_to(Sgemm single, Dgemm of_doubles, Cgemm complex, Sgemv single_vector, Dgemv vector_of_doubles)
{
    sgemm = single;
    dgemm = of_doubles;
    cgemm = complex;
    sgemv = single_vector;
    dgemv = vector_of_doubles;
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "opgraft._blas", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__blas(void) { return PyModule_Create(&module); }
