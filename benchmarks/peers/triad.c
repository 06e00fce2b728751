// Memory bandwidth: the triad of STREAM, a[i] = b[i] + s * c[i], on arrays that no cache holds.
//
//     cc -O3 -march=native -fopenmp triad.c -o triad && OMP_NUM_THREADS=2 ./triad
//
// Prints GB/s, the median of the repeats; bytes counted as STREAM does, without the read for ownership of a[].
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { REPEATS = 5 };
static const size_t kCount = (size_t)32 << 20;  // doubles: 256 MiB an array

static int by_value(const void* x, const void* y) {
    const double a = *(const double*)x, b = *(const double*)y;
    return (a > b) - (a < b);
}

int main(void) {
    double* a = aligned_alloc(64, kCount * sizeof *a);
    double* b = aligned_alloc(64, kCount * sizeof *b);
    double* c = aligned_alloc(64, kCount * sizeof *c);
    if (!a || !b || !c) return 1;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < kCount; ++i) a[i] = 0, b[i] = 1, c[i] = 2;  // each thread touches its own pages first
    double rates[REPEATS];
    for (int repeat = 0; repeat < REPEATS; ++repeat) {
        const double start = omp_get_wtime();
#pragma omp parallel for schedule(static)
        for (size_t i = 0; i < kCount; ++i) a[i] = b[i] + 3.0 * c[i];
        rates[repeat] = 3.0 * (double)(kCount * sizeof *a) / (omp_get_wtime() - start) / 1e9;
    }
    if (a[kCount / 2] != 7.0) return 1;
    qsort(rates, REPEATS, sizeof *rates, by_value);
    printf("%.2f\n", rates[REPEATS / 2]);
    return 0;
}
