# What every target of this project is compiled with.
include (CheckCCompilerFlag)

set (CMAKE_C_STANDARD 11)
set (CMAKE_C_STANDARD_REQUIRED ON)
set (CMAKE_C_EXTENSIONS ON)
set (CMAKE_C_VISIBILITY_PRESET hidden)
set (CMAKE_POSITION_INDEPENDENT_CODE ON)
set (CMAKE_EXPORT_COMPILE_COMMANDS ON)

if (NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set (CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif ()

find_program (EBB_CCACHE ccache)
mark_as_advanced (EBB_CCACHE)
if (EBB_CCACHE AND NOT CMAKE_C_COMPILER_LAUNCHER)
  set (CMAKE_C_COMPILER_LAUNCHER "${EBB_CCACHE}")
endif ()

add_library (ebb-warnings INTERFACE)
foreach (warning IN ITEMS
    all extra shadow strict-prototypes missing-prototypes missing-declarations old-style-definition pointer-arith undef
    vla write-strings format=2 redundant-decls nested-externs implicit-fallthrough duplicated-cond duplicated-branches
    logical-op no-unused-parameter no-missing-field-initializers)
  string (MAKE_C_IDENTIFIER "EBB_HAS_W_${warning}" known)
  # gcc accepts any -Wno-…, known or not, so it is the positive form that is tried.
  string (REGEX REPLACE "^no-" "" tried "${warning}")
  check_c_compiler_flag ("-W${tried}" ${known})
  if (${known})
    target_compile_options (ebb-warnings INTERFACE "-W${warning}")
  endif ()
endforeach ()
if (EBB_WERROR)
  target_compile_options (ebb-warnings INTERFACE -Werror)
endif ()

# Rounding is the same in every build: a product and a sum are fused only where the source asks for it, or in the
# SIMD kernels. errno from the math functions is read nowhere and keeps loops from being vectorised.
add_library (ebb-codegen INTERFACE)
target_compile_options (ebb-codegen INTERFACE -ffp-contract=off -fno-math-errno -fno-strict-aliasing)

if (EBB_SANITIZE)
  add_compile_options (-fsanitize=${EBB_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options (-fsanitize=${EBB_SANITIZE})
endif ()
