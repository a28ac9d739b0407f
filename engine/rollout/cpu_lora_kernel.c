/* LoRA for the rows of many adapters at once, on CPUs with AVX-512 BF16.
 *
 * y[row, slice] += B[slot, slice] (A[slot, slice] x[row]) in bfloat16 with fp32 sums; A x is rounded to bfloat16 between
 * the two, as the trainer does it. A block's rows share a slot, and meet no other weights than that slot's.
 * Compiled and called by engine/rollout/cpu_lora_kernel.py. */

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>

#ifndef __AVX512BF16__
#error "this CPU has no AVX-512 BF16"
#endif

enum { ROWS = 16, PAIRS = 256 }; /* rows of a block; half of the highest rank */

typedef uint16_t bf16;

static inline __m512bh load(const bf16 *from) { return (__m512bh)_mm512_loadu_si512(from); }

static inline __m512bh load_first(const bf16 *from, int64_t count) {
    return (__m512bh)_mm512_maskz_loadu_epi16((__mmask32)((1u << count) - 1), from);
}

static inline uint32_t pack(float low, float high) {
    __m128bh both = _mm_cvtneps_pbh(_mm_setr_ps(low, high, 0, 0));
    return (uint32_t)_mm_cvtsi128_si32((__m128i)both);
}

/* hidden[row][r / 2]: the pairs A[r] . x[row], A[r + 1] . x[row]. a: [rank, width], rank even. */
static void shrink(uint32_t (*hidden)[PAIRS], const bf16 *a, const bf16 *x, int64_t x_stride, const int64_t *index,
                   int64_t rows, int64_t width, int64_t rank) {
    int64_t whole = width & ~31, rest = width & 31;
    for (int64_t r = 0; r < rank; r += 2) {
        const bf16 *even = a + r * width, *odd = even + width;
        for (int64_t row = 0; row < rows; row += 4) {
            const bf16 *from[4];
            __m512 low[4], high[4];
            for (int k = 0; k < 4; k++) {
                from[k] = x + index[row + k < rows ? row + k : row] * x_stride;
                low[k] = high[k] = _mm512_setzero_ps();
            }
            for (int64_t d = 0; d < whole; d += 32) {
                __m512bh first = load(even + d), second = load(odd + d);
                for (int k = 0; k < 4; k++) {
                    __m512bh input = load(from[k] + d);
                    low[k] = _mm512_dpbf16_ps(low[k], first, input);
                    high[k] = _mm512_dpbf16_ps(high[k], second, input);
                }
            }
            if (rest) {
                __m512bh first = load_first(even + whole, rest), second = load_first(odd + whole, rest);
                for (int k = 0; k < 4; k++) {
                    __m512bh input = load_first(from[k] + whole, rest);
                    low[k] = _mm512_dpbf16_ps(low[k], first, input);
                    high[k] = _mm512_dpbf16_ps(high[k], second, input);
                }
            }
            for (int k = 0; k < 4 && row + k < rows; k++)
                hidden[row + k][r / 2] = pack(_mm512_reduce_add_ps(low[k]), _mm512_reduce_add_ps(high[k]));
        }
    }
}

/* y[row] += B hidden[row]. b: [width, rank], rank even, width a multiple of 16. */
static void expand(bf16 *y, int64_t y_stride, const int64_t *index, const bf16 *b, uint32_t (*hidden)[PAIRS],
                   int64_t rows, int64_t width, int64_t rank) {
    int64_t pairs = rank / 2;
    __m512bh weights[PAIRS];
    __m512i lanes = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                       _mm512_set1_epi32((int)pairs));
    for (int64_t o = 0; o < width; o += 16) {
        for (int64_t p = 0; p < pairs; p++)
            weights[p] = (__m512bh)_mm512_i32gather_epi32(lanes, (const int *)(b + o * rank) + p, 4);
        for (int64_t row = 0; row < rows; row++) {
            bf16 *target = y + index[row] * y_stride + o;
            __m512 sum = _mm512_castsi512_ps(
                _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)target)), 16));
            __m512 other = _mm512_setzero_ps();
            int64_t p = 0;
            for (; p + 2 <= pairs; p += 2) {
                sum = _mm512_dpbf16_ps(sum, weights[p], (__m512bh)_mm512_set1_epi32((int)hidden[row][p]));
                other = _mm512_dpbf16_ps(other, weights[p + 1], (__m512bh)_mm512_set1_epi32((int)hidden[row][p + 1]));
            }
            if (p < pairs) sum = _mm512_dpbf16_ps(sum, weights[p], (__m512bh)_mm512_set1_epi32((int)hidden[row][p]));
            _mm256_storeu_si256((__m256i *)target, (__m256i)_mm512_cvtneps_pbh(_mm512_add_ps(sum, other)));
        }
    }
}

/* index: rows of x and y, block after block. blocks: {slot, first place in index, rows <= ROWS} each. Per slice a:
 * [slots, rank, in], b: [slots, width, rank]. */
void marlaas_add_lora(bf16 *y, int64_t y_stride, const bf16 *x, int64_t x_stride, const int64_t *index,
                      const int64_t *blocks, int64_t count, int64_t in, int64_t rank, int64_t slices,
                      const bf16 *const *a, const bf16 *const *b, const int64_t *widths) {
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
    for (int64_t block = 0; block < count; block++) {
        int64_t slot = blocks[3 * block], rows = blocks[3 * block + 2];
        const int64_t *mine = index + blocks[3 * block + 1];
        uint32_t hidden[ROWS][PAIRS];
        bf16 *target = y;
        for (int64_t slice = 0; slice < slices; slice++) {
            shrink(hidden, a[slice] + slot * rank * in, x, x_stride, mine, rows, in, rank);
            expand(target, y_stride, mine, b[slice] + slot * widths[slice] * rank, hidden, rows, widths[slice], rank);
            target += widths[slice];
        }
    }
}
