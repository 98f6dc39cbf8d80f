/*
 * ISA-L's erasure code, as Debian has it: what ours is measured against, and what it must equal.
 *
 * With the argument `golden` it prints of every code of up to 16 data and 4 parity units
 *
 *	K+M
 *	COEFFICIENTS PARITY	M times, in hexadecimal
 *
 * of units of 19 bytes each: the top bytes of x -> 1664525 x + 1013904223, from 1 on.
 *
 * Else standard input has a line for each measurement: VERB K M LENGTH SECONDS, where VERB is
 * `encode` (whole stripes) or `parts` (the data units one by one, each times its coefficients).
 * Each gets a line back: ROUNDS NANOSECONDS, of the thread's CPU time.
 */
#include <isa-l/erasure_code.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DATA_MAX 16
#define PARITY_MAX 4
#define GOLDEN_LEN 19

static unsigned char matrix[(DATA_MAX + PARITY_MAX) * DATA_MAX];
static unsigned char tables[DATA_MAX * PARITY_MAX * 32];
static unsigned char of_unit[DATA_MAX][PARITY_MAX * 32];

static void prepare(int k, int m)
{
	unsigned char column[PARITY_MAX];
	gf_gen_cauchy1_matrix(matrix, k + m, k);
	ec_init_tables(k, m, matrix + k * k, tables);
	for (int j = 0; j < k; j++) {
		for (int r = 0; r < m; r++)
			column[r] = matrix[(k + r) * k + j];
		ec_init_tables(1, m, column, of_unit[j]);
	}
}

static void hex(const unsigned char *bytes, int count)
{
	for (int n = 0; n < count; n++)
		printf("%02x", bytes[n]);
}

static void golden(int k, int m)
{
	unsigned char bytes[DATA_MAX + PARITY_MAX][GOLDEN_LEN], *units[DATA_MAX + PARITY_MAX];
	uint32_t state = 1;
	for (int j = 0; j < k + m; j++)
		units[j] = bytes[j];
	for (int n = 0; n < k * GOLDEN_LEN; n++) {
		state = state * 1664525 + 1013904223;
		bytes[n / GOLDEN_LEN][n % GOLDEN_LEN] = (unsigned char)(state >> 24);
	}
	prepare(k, m);
	ec_encode_data(GOLDEN_LEN, k, m, tables, units, units + k);
	printf("%d+%d\n", k, m);
	for (int r = 0; r < m; r++) {
		hex(matrix + (k + r) * k, k);
		putchar(' ');
		hex(bytes[k + r], GOLDEN_LEN);
		putchar('\n');
	}
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void measure(int parts, int k, int m, int len, double seconds)
{
	unsigned char *units[DATA_MAX + PARITY_MAX];
	double start, end;
	long rounds = 0;
	for (int j = 0; j < k + m; j++) {
		units[j] = aligned_alloc(64, ((size_t)len + 63) / 64 * 64);
		if (units[j] == NULL)
			exit(1);
		memset(units[j], j + 1, (size_t)len);
	}
	prepare(k, m);
	start = end = now();
	while (end - start < seconds * 1e9) {
		for (int n = 0; n < 64; n++, rounds++) {
			if (!parts)
				ec_encode_data(len, k, m, tables, units, units + k);
			for (int j = 0; parts && j < k; j++)
				ec_encode_data(len, 1, m, of_unit[j], units + j, units + k);
		}
		end = now();
	}
	printf("%ld %.0f\n", rounds, end - start);
	fflush(stdout);
	for (int j = 0; j < k + m; j++)
		free(units[j]);
}

int main(int count, char **arguments)
{
	char verb[16];
	int k, m, len;
	double seconds;
	if (count > 1 && strcmp(arguments[1], "golden") == 0) {
		for (k = 1; k <= DATA_MAX; k++)
			for (m = 1; m <= PARITY_MAX; m++)
				golden(k, m);
		return 0;
	}
	while (scanf("%15s %d %d %d %lf", verb, &k, &m, &len, &seconds) == 5) {
		if (k < 1 || k > DATA_MAX || m < 1 || m > PARITY_MAX || len < 1)
			return 1;
		measure(strcmp(verb, "parts") == 0, k, m, len, seconds);
	}
	return 0;
}
