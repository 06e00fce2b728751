// The AVX512 intrinsics that the kernels use, as functions that a machine without AVX512 can run, so that the avx512
// path can be tested on one. Found instead of the compiler's own header when OCTAVO_EMULATE_AVX512 is on
// (CMakeLists.txt). For results only: it is many times slower. An intrinsic that is missing here fails to compile.
#pragma once
#include_next <immintrin.h>  // types, and what is not AVX512

#include "avx512.h"

#undef _mm512_loadu_ps
#define _mm512_loadu_ps octavo_emulated::loadu_ps
#undef _mm512_loadu_si512
#define _mm512_loadu_si512 octavo_emulated::loadu_si512
#undef _mm512_storeu_ps
#define _mm512_storeu_ps octavo_emulated::storeu_ps
#undef _mm512_storeu_si512
#define _mm512_storeu_si512 octavo_emulated::storeu_si512
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps octavo_emulated::maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps octavo_emulated::mask_storeu_ps
#undef _mm512_maskz_mov_epi16
#define _mm512_maskz_mov_epi16 octavo_emulated::maskz_mov_epi16
#undef _mm512_set1_ps
#define _mm512_set1_ps octavo_emulated::set1_ps
#undef _mm512_setzero_ps
#define _mm512_setzero_ps octavo_emulated::setzero_ps
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 octavo_emulated::set1_epi32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 octavo_emulated::set1_epi8
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 octavo_emulated::setzero_si512
#undef _mm512_setr_epi32
#define _mm512_setr_epi32 octavo_emulated::setr_epi32
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps octavo_emulated::castsi512_ps
#undef _mm512_castps_si512
#define _mm512_castps_si512 octavo_emulated::castps_si512
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 octavo_emulated::slli_epi32
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 octavo_emulated::srli_epi32
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 octavo_emulated::srli_epi16
#undef _mm512_and_si512
#define _mm512_and_si512 octavo_emulated::and_si512
#undef _mm512_or_si512
#define _mm512_or_si512 octavo_emulated::or_si512
#undef _mm512_add_epi32
#define _mm512_add_epi32 octavo_emulated::add_epi32
#undef _mm512_reduce_add_epi32
#define _mm512_reduce_add_epi32 octavo_emulated::reduce_add_epi32
#undef _mm512_reduce_or_epi32
#define _mm512_reduce_or_epi32 octavo_emulated::reduce_or_epi32
#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 octavo_emulated::cvtepu16_epi32
#undef _mm512_cvtepi16_epi32
#define _mm512_cvtepi16_epi32 octavo_emulated::cvtepi16_epi32
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 octavo_emulated::cvtepi8_epi32
#undef _mm512_cvtepi8_epi16
#define _mm512_cvtepi8_epi16 octavo_emulated::cvtepi8_epi16
#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 octavo_emulated::cvtepi32_epi8
#undef _mm512_unpacklo_epi16
#define _mm512_unpacklo_epi16 octavo_emulated::unpacklo_epi16
#undef _mm512_unpackhi_epi16
#define _mm512_unpackhi_epi16 octavo_emulated::unpackhi_epi16
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32 octavo_emulated::dpwssd_epi32
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32 octavo_emulated::dpbusd_epi32
#undef _mm512_add_ps
#define _mm512_add_ps octavo_emulated::add_ps
#undef _mm512_sub_ps
#define _mm512_sub_ps octavo_emulated::sub_ps
#undef _mm512_mul_ps
#define _mm512_mul_ps octavo_emulated::mul_ps
#undef _mm512_div_ps
#define _mm512_div_ps octavo_emulated::div_ps
#undef _mm512_max_ps
#define _mm512_max_ps octavo_emulated::max_ps
#undef _mm512_min_ps
#define _mm512_min_ps octavo_emulated::min_ps
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps octavo_emulated::fmadd_ps
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps octavo_emulated::fnmadd_ps
#undef _mm512_abs_ps
#define _mm512_abs_ps octavo_emulated::abs_ps
#undef _mm512_scalef_ps
#define _mm512_scalef_ps octavo_emulated::scalef_ps
#undef _mm512_reduce_add_ps
#define _mm512_reduce_add_ps octavo_emulated::reduce_add_ps
#undef _mm512_reduce_max_ps
#define _mm512_reduce_max_ps octavo_emulated::reduce_max_ps
#undef _mm512_permutex2var_ps
#define _mm512_permutex2var_ps octavo_emulated::permutex2var_ps
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps octavo_emulated::cvtepi32_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 octavo_emulated::cvtps_epi32
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps octavo_emulated::cvtph_ps
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh octavo_emulated::cvtne2ps_pbh
#undef _mm512_cvtneps_pbh
#define _mm512_cvtneps_pbh octavo_emulated::cvtneps_pbh
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps octavo_emulated::dpbf16_ps
#undef _mm512_maskz_loadu_epi16
#define _mm512_maskz_loadu_epi16 octavo_emulated::maskz_loadu_epi16_512
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16 octavo_emulated::maskz_loadu_epi16_256
#undef _mm256_mask_storeu_epi16
#define _mm256_mask_storeu_epi16 octavo_emulated::mask_storeu_epi16_256
#undef _mm_maskz_loadu_epi8
#define _mm_maskz_loadu_epi8 octavo_emulated::maskz_loadu_epi8_128
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(v, rounding) octavo_emulated::roundscale_ps<(rounding)>(v)
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(v, w, predicate) octavo_emulated::cmp_ps_mask<(predicate)>(v, w)
