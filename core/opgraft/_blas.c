/* The three BLAS functions that MLX's CPU backend multiplies matrices with, handed on to another BLAS.

MLX's wheels for Linux are linked with the reference BLAS. Where this library is loaded first, with its symbols for
everybody, the dynamic linker finds these functions before those, and MLX calls what `forward_to` was given. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define GEMM_PARAMETERS(scalar, element) \
    int order, int transpose_a, int transpose_b, int m, int n, int k, scalar alpha, const element *a, int lda, \
    const element *b, int ldb, scalar beta, element *c, int ldc
#define GEMM_ARGUMENTS order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc

typedef void (*Sgemm)(GEMM_PARAMETERS(float, float));
typedef void (*Dgemm)(GEMM_PARAMETERS(double, double));
typedef void (*Cgemm)(GEMM_PARAMETERS(const void *, void));

static Sgemm sgemm;
static Dgemm dgemm;
static Cgemm cgemm;

void cblas_sgemm(GEMM_PARAMETERS(float, float)) { sgemm(GEMM_ARGUMENTS); }
void cblas_dgemm(GEMM_PARAMETERS(double, double)) { dgemm(GEMM_ARGUMENTS); }
void cblas_cgemm(GEMM_PARAMETERS(const void *, void)) { cgemm(GEMM_ARGUMENTS); }

/* Takes the addresses of functions with the same parameters. Nothing may be multiplied before. */
void forward_to(Sgemm single, Dgemm of_doubles, Cgemm complex)
{
    sgemm = single;
    dgemm = of_doubles;
    cgemm = complex;
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "opgraft._blas", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__blas(void) { return PyModule_Create(&module); }
