/* FFTW 3 over MPI beside `nas-ft --transforms N`: forward and inverse transforms of a class's grid, in a loop.
 *
 *     apt install libfftw3-mpi-dev
 *     mpicc -O3 -o fftw-ft bench-apps/nas-ft/peers/fftw.c -lfftw3_mpi -lfftw3 -lm
 *     mpirun -n 2 ./fftw-ft A 10
 *
 * The plans are of FFTW_MEASURE, and the spectrum is transposed ([y][z][x]), as ours is: one transpose a transform.
 * Neither is scaled. Each transform is timed by itself, from one barrier to the next; the scaling between two rounds is not. */
#include <fftw3-mpi.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count) {
    qsort(times, count, sizeof *times, compare);
    return count % 2 ? times[count / 2] : (times[count / 2 - 1] + times[count / 2]) / 2;
}

int main(int argc, char **argv) {
    static const struct { char letter; ptrdiff_t nx, ny, nz; } classes[] = {
        {'S', 64, 64, 64}, {'W', 128, 128, 32}, {'A', 256, 256, 128}, {'B', 512, 256, 256}, {'C', 512, 512, 512}};
    int rank, ranks, rounds = argc > 2 ? atoi(argv[2]) : 10, class = 0;
    MPI_Init(&argc, &argv);
    fftw_mpi_init();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    while (class < 4 && argc > 1 && classes[class].letter != argv[1][0]) class++;
    ptrdiff_t nx = classes[class].nx, ny = classes[class].ny, nz = classes[class].nz, planes, first, rows, first_row;
    double points = (double)nx * ny * nz;

    ptrdiff_t local = fftw_mpi_local_size_3d_transposed(nz, ny, nx, MPI_COMM_WORLD, &planes, &first, &rows, &first_row);
    fftw_complex *state = fftw_alloc_complex(local), *spectrum = fftw_alloc_complex(local), *input = fftw_alloc_complex(local);
    fftw_plan forward = fftw_mpi_plan_dft_3d(nz, ny, nx, state, spectrum, MPI_COMM_WORLD, FFTW_FORWARD,
                                             FFTW_MEASURE | FFTW_MPI_TRANSPOSED_OUT);
    fftw_plan inverse = fftw_mpi_plan_dft_3d(nz, ny, nx, spectrum, state, MPI_COMM_WORLD, FFTW_BACKWARD,
                                             FFTW_MEASURE | FFTW_MPI_TRANSPOSED_IN);
    ptrdiff_t mine = planes * ny * nx;
    for (ptrdiff_t i = 0; i < mine; i++) {
        input[i][0] = drand48();
        input[i][1] = drand48();
    }
    memcpy(state, input, mine * sizeof *state);

    double *forward_times = malloc(rounds * sizeof(double)), *inverse_times = malloc(rounds * sizeof(double));
    for (int round = -1; round < rounds; round++) { /* The first round is not counted. */
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        fftw_execute(forward);
        MPI_Barrier(MPI_COMM_WORLD);
        double middle = MPI_Wtime();
        fftw_execute(inverse);
        MPI_Barrier(MPI_COMM_WORLD);
        double end = MPI_Wtime();
        for (ptrdiff_t i = 0; i < mine; i++) {
            state[i][0] /= points;
            state[i][1] /= points;
        }
        if (round >= 0) forward_times[round] = middle - start, inverse_times[round] = end - middle;
    }
    double error = 0, greatest = 0;
    for (ptrdiff_t i = 0; i < mine; i++)
        error = fmax(error, hypot(state[i][0] - input[i][0], state[i][1] - input[i][1]));
    MPI_Reduce(&error, &greatest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        double f = 1e3 * median(forward_times, rounds), i = 1e3 * median(inverse_times, rounds);
        printf("FFTW, %td x %td x %td points, %d ranks, %d rounds: forward %.2f ms, inverse %.2f ms, per transform %.2f ms; "
               "greatest error %.1e\n", nx, ny, nz, ranks, rounds, f, i, (f + i) / 2, greatest);
    }
    MPI_Finalize();
    return greatest > 1e-10;
}
