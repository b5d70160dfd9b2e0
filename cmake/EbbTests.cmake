# Programs (tests/tensor, nn, dist, offload, wrap, train), introspection (tests/gi), scripts (tests/scripts), benchmarks
# (tests/bench).
# Labels: unit, kernels (arithmetic against float64), slow, sim and cudaemu (on an emulated device), gi, script, long
# (minutes, or one of too many; run where EBB_LONG is set).
# A test that can't run here exits with 77.
set (EBB_TEST_THREADS 2 CACHE STRING "OpenMP threads of each test")

set (tests_dir "${CMAKE_CURRENT_SOURCE_DIR}/tests")
# The sanitizers guess how large other libraries' thread-local storage is. A wrong guess ends the program. The library's
# own storage is static and needs no guess.
set (no_guess "intercept_tls_get_addr=0")
set (asan_memory "allocator_may_return_null=1")
set (test_environment
  "OMP_NUM_THREADS=${EBB_TEST_THREADS}" "OMP_WAIT_POLICY=passive"
  "G_TEST_SRCDIR=${tests_dir}" "G_TEST_BUILDDIR=${CMAKE_CURRENT_BINARY_DIR}/tests"
  "EBB_BACKEND_PATH=${EBB_BACKENDS_DIR}"
  "EBB_COST_FILE=" "EBB_BUILD_DIR=${CMAKE_CURRENT_BINARY_DIR}" "EBB_SOURCE_DIR=${CMAKE_CURRENT_SOURCE_DIR}"
  "G_SLICE=always-malloc" "LC_ALL=C.UTF-8"
  "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:${no_guess}:${asan_memory}"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "LSAN_OPTIONS=suppressions=${tests_dir}/support/lsan.supp:print_suppressions=0"
  "TSAN_OPTIONS=suppressions=${tests_dir}/support/tsan.supp:second_deadlock_stack=1:${no_guess}")

function (ebb_set_test_properties test label timeout)
  if (CMAKE_CROSSCOMPILING)
    math (EXPR timeout "${timeout} * 20")
  elseif (EBB_SANITIZE)
    math (EXPR timeout "${timeout} * 5")
  endif ()
  set_tests_properties (${test} PROPERTIES
    ENVIRONMENT "${test_environment};${ARGN}" LABELS "${label}" TIMEOUT ${timeout}
    PROCESSORS 1 SKIP_RETURN_CODE 77)
endfunction ()

file (GLOB support_sources CONFIGURE_DEPENDS "${tests_dir}/support/*.c")

# The types of all public headers, for tests/support/classes.c.
set (EBB_TEST_TYPES)
foreach (header IN LISTS EBB_PUBLIC_HEADERS)
  file (STRINGS "${CMAKE_CURRENT_SOURCE_DIR}/${header}" defines REGEX "^#define EBB_TYPE_.*_get_type \\(\\)\\)$")
  foreach (define IN LISTS defines)
    string (REGEX REPLACE "^#define (EBB_TYPE_[A-Z0-9_]+) .*" "\\1" type "${define}")
    string (APPEND EBB_TEST_TYPES "    ${type},\n")
  endforeach ()
endforeach ()
file (CONFIGURE OUTPUT "${EBB_GENERATED_DIR}/test-types.inc" CONTENT "@EBB_TEST_TYPES@" @ONLY)
# Private headers are read here for both twins; what of it needs private symbols is linked with the static one only.
add_library (ebb-test-support-objects OBJECT EXCLUDE_FROM_ALL ${support_sources})
target_link_libraries (ebb-test-support-objects PRIVATE ebb ebb-codegen PkgConfig::EBB_JSON_GLIB ebb-warnings)
target_include_directories (ebb-test-support-objects PRIVATE "${tests_dir}" "${EBB_GENERATED_DIR}")
target_compile_definitions (ebb-test-support-objects PRIVATE EBB_COMPILATION
  EBB_HAVE_SIMD_AVX2=${EBB_HAVE_SIMD_AVX2} EBB_HAVE_SIMD_AVX512=${EBB_HAVE_SIMD_AVX512})
foreach (twin IN ITEMS ebb ebb-static)
  add_library (${twin}-test-support STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:ebb-test-support-objects>)
  target_link_libraries (${twin}-test-support PUBLIC ${twin} ebb-codegen PkgConfig::EBB_JSON_GLIB)
  target_include_directories (${twin}-test-support PUBLIC "${tests_dir}")
  set_target_properties (${twin}-test-support PROPERTIES LINKER_LANGUAGE C)
endforeach ()

# ThreadSanitizer would have to be told of each switch between the emulation's stacks; one thread at a time runs there.
set (EBB_CUDAEMU OFF)
if (CMAKE_CROSSCOMPILING)
  message (STATUS "cross-building: tests on the emulated GPU and those by scripts are left out")
elseif (NOT EBB_SANITIZE MATCHES "thread")
  include (CheckLanguage)
  # Without this a compiler that was installed since, as scripts/test does, would stay missing.
  if (CMAKE_CXX_COMPILER MATCHES "NOTFOUND$")
    unset (CMAKE_CXX_COMPILER CACHE)
  endif ()
  check_language (CXX)
  if (CMAKE_CXX_COMPILER)
    enable_language (CXX)
    add_subdirectory (tests/cudaemu)
    set (EBB_CUDAEMU ON)
  else ()
    message (STATUS "g++ was not found: tests on the emulated GPU are left out")
  endif ()
endif ()

# For tests that solve a problem once more, as an integer program.
find_path (EBB_GLPK_INCLUDE_DIR glpk.h)
find_library (EBB_GLPK_LIBRARY glpk)
mark_as_advanced (EBB_GLPK_INCLUDE_DIR EBB_GLPK_LIBRARY)

# Some hundred programs are linked; gold does it in a third of the time.
include (CheckLinkerFlag)
check_linker_flag (C -fuse-ld=gold EBB_HAS_GOLD)

function (ebb_add_program target file twin folder)
  cmake_path (GET file STEM name)
  add_executable (${target} "${file}")
  target_link_libraries (${target} PRIVATE
    ${twin}-test-support ${twin} ebb-warnings ebb-codegen PkgConfig::EBB_JSON_GLIB OpenMP::OpenMP_C ${CMAKE_DL_LIBS})
  target_include_directories (${target} PRIVATE "${tests_dir}")
  if (EBB_HAS_GOLD)
    target_link_options (${target} PRIVATE -fuse-ld=gold)
  endif ()
  if (EBB_MATH)
    target_link_libraries (${target} PRIVATE ${EBB_MATH})
  endif ()
  set_target_properties (${target} PROPERTIES
    OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/${folder}")
endfunction ()

# A program of tests/ is named after its place: tests/nn/args.c is the test nn/args. Its second line may say, after
# "test:", what it needs:
#   private-headers  it sees the private headers and links the static twin
#   cpu-only         it doesn't run again on the emulated accelerator and GPU, as NAME-on-sim and NAME-on-cudaemu
#   long-sim         on the emulated accelerator it runs only where EBB_LONG is set
#   cudaemu          it runs on the emulated GPU although it is cpu-only
#   kernels          the label kernels: arithmetic against float64
#   slow             the label slow, and more time
#   one-thread       ThreadSanitizer leaves it out, as it does kernels: no threads of it share anything
#   glpk             it is linked with GLPK, and skipped where that isn't installed
function (ebb_read_needs variable file)
  file (STRINGS "${file}" needs REGEX "^/\\* test: [a-z -]+ \\*/$" LIMIT_COUNT 1)
  separate_arguments (needs UNIX_COMMAND "${needs}")
  set (${variable} "${needs}" PARENT_SCOPE)
endfunction ()

if (EBB_CUDAEMU)
  foreach (name IN ITEMS execution runtime)
    add_test (NAME cudaemu/${name} COMMAND test-cudaemu-${name})
    ebb_set_test_properties (cudaemu/${name} cudaemu 120)
  endforeach ()
endif ()

# The tests that run on the emulated GPU whenever tests run; the others there are long, and need EBB_LONG.
file (STRINGS "${tests_dir}/cudaemu/short-tests.txt" short_tests REGEX "^[a-z]")
set_property (DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${tests_dir}/cudaemu/short-tests.txt")

file (GLOB_RECURSE test_files CONFIGURE_DEPENDS RELATIVE "${tests_dir}"
  "${tests_dir}/tensor/*.c" "${tests_dir}/nn/*.c" "${tests_dir}/dist/*.c" "${tests_dir}/offload/*.c"
  "${tests_dir}/wrap/*.c" "${tests_dir}/train/*.c")
foreach (file IN LISTS test_files)
  ebb_read_needs (needs "${tests_dir}/${file}")
  string (REGEX REPLACE "\\.c$" "" name "${file}")
  string (REPLACE "/" "-" program "test-${name}")
  cmake_path (GET file PARENT_PATH folder)
  if (folder STREQUAL "tensor/cuda" AND NOT EBB_CUDAEMU)
    continue ()
  endif ()
  if (EBB_SANITIZE MATCHES "thread" AND ("one-thread" IN_LIST needs OR "kernels" IN_LIST needs))
    continue ()
  endif ()
  if ("glpk" IN_LIST needs AND (NOT EBB_GLPK_INCLUDE_DIR OR NOT EBB_GLPK_LIBRARY))
    add_test (NAME ${name} COMMAND sh -c "echo 'GLPK was not found: install libglpk-dev'; exit 77")
    ebb_set_test_properties (${name} unit 120)
    continue ()
  endif ()
  set (twin ebb)
  set (label unit)
  set (timeout 120)
  if ("private-headers" IN_LIST needs)
    set (twin ebb-static)
  endif ()
  if ("kernels" IN_LIST needs)
    set (label kernels)
  elseif ("slow" IN_LIST needs)
    set (label slow)
    set (timeout 400)
  endif ()
  if (folder STREQUAL "tensor/cuda")
    list (APPEND label cudaemu)
  endif ()
  ebb_add_program (${program} "${tests_dir}/${file}" ${twin} "tests/${folder}")
  if ("glpk" IN_LIST needs)
    target_include_directories (${program} SYSTEM PRIVATE "${EBB_GLPK_INCLUDE_DIR}")
    target_link_libraries (${program} PRIVATE "${EBB_GLPK_LIBRARY}")
  endif ()
  # On sim the same threads run, and those of its streams: ThreadSanitizer sees no more on the CPU.
  if ("cpu-only" IN_LIST needs OR NOT EBB_SANITIZE MATCHES "thread")
    add_test (NAME ${name} COMMAND ${program})
    ebb_set_test_properties (${name} "${label}" ${timeout})
  endif ()
  if (NOT "cpu-only" IN_LIST needs)
    add_test (NAME ${name}-on-sim COMMAND ${program})
    if ("long-sim" IN_LIST needs)
      ebb_set_test_properties (${name}-on-sim "sim;long" 1500 "EBB_TEST_DEVICE=sim" "EBB_TEST_IS_LONG=1")
    else ()
      ebb_set_test_properties (${name}-on-sim "${label};sim" ${timeout} "EBB_TEST_DEVICE=sim")
    endif ()
  endif ()
  if (EBB_CUDAEMU AND (NOT "cpu-only" IN_LIST needs OR "cudaemu" IN_LIST needs))
    add_test (NAME ${name}-on-cudaemu COMMAND ${program})
    if (name IN_LIST short_tests)
      ebb_set_test_properties (${name}-on-cudaemu "cudaemu" ${timeout} "EBB_TEST_DEVICE=cudaemu")
    else ()
      ebb_set_test_properties (${name}-on-cudaemu "cudaemu;long" 1500 "EBB_TEST_DEVICE=cudaemu" "EBB_TEST_IS_LONG=1")
    endif ()
  endif ()
endforeach ()

# Each tries some thousand damaged inputs from a fixed seed, fewer in an emulator; by hand it takes other seeds. One
# thread does it, so ThreadSanitizer leaves them out.
set (fuzz_arguments)
if (CMAKE_CROSSCOMPILING)
  set (fuzz_arguments 1 1000)
endif ()
file (GLOB fuzz_files CONFIGURE_DEPENDS "${tests_dir}/fuzz/*.c")
if (EBB_SANITIZE MATCHES "thread")
  set (fuzz_files)
endif ()
foreach (file IN LISTS fuzz_files)
  cmake_path (GET file STEM name)
  ebb_add_program (fuzz-${name} "${file}" ebb-static tests/fuzz)
  add_test (NAME fuzz-${name} COMMAND fuzz-${name} ${fuzz_arguments})
  ebb_set_test_properties (fuzz-${name} fuzz 120)
endforeach ()

# What stands before the C library's functions when a script wants some to fail.
add_library (io-fault MODULE "${tests_dir}/fuzz/preload/io-fault.c")
target_link_libraries (io-fault PRIVATE ebb-warnings ${CMAKE_DL_LIBS})
target_compile_definitions (io-fault PRIVATE _GNU_SOURCE)
set_target_properties (io-fault PROPERTIES C_VISIBILITY_PRESET default
  LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/tests/fuzz")

# Benchmarks are run by hand and by scripts, in the build without sanitizers.
if (NOT EBB_SANITIZE)
  file (GLOB bench_files CONFIGURE_DEPENDS "${tests_dir}/bench/*.c")
  foreach (file IN LISTS bench_files)
    cmake_path (GET file STEM name)
    ebb_read_needs (needs "${file}")
    set (twin ebb)
    if ("private-headers" IN_LIST needs)
      set (twin ebb-static)
    endif ()
    ebb_add_program (bench-${name} "${file}" ${twin} tests/bench)
  endforeach ()
endif ()

# The bindings: the interpreters that the distribution's introspection packages belong to.
if (EBB_BUILDS_INTROSPECTION)
  set (gi_environment "GI_TYPELIB_PATH=${CMAKE_CURRENT_BINARY_DIR}" "LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}"
    "PYTHONPATH=${CMAKE_CURRENT_SOURCE_DIR}/bindings/python" "PYTHONDONTWRITEBYTECODE=1"
    "GJS_PATH=${CMAKE_CURRENT_SOURCE_DIR}/bindings/js")
  find_program (EBB_GJS gjs)
  mark_as_advanced (EBB_GJS)
  file (GLOB gi_files CONFIGURE_DEPENDS "${tests_dir}/gi/*.py" "${tests_dir}/gi/*.js")
  foreach (file IN LISTS gi_files)
    cmake_path (GET file STEM name)
    cmake_path (GET file EXTENSION extension)
    set (interpreter "${EBB_GI_PYTHON}")
    if (extension STREQUAL ".js")
      set (interpreter "${EBB_GJS}" -m)
    endif ()
    if (NOT interpreter MATCHES "NOTFOUND")
      string (REPLACE "." "" language "${extension}")
      add_test (NAME gi-${language}-${name} COMMAND ${interpreter} "${file}")
      ebb_set_test_properties (gi-${language}-${name} gi 120 ${gi_environment})
    endif ()
  endforeach ()
endif ()

# Scripts check the source tree, the GIR or an installed copy: once, in the build that has them all.
if (NOT EBB_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  find_program (EBB_PYTHON python3 HINTS /usr/bin)
  mark_as_advanced (EBB_PYTHON)
  # Today's figures of tests/scripts/circles.py, which has higher defaults. Lower them with each circle that goes.
  set (arguments_circles --circles 2 --files 7 --largest 5)
  file (GLOB script_files CONFIGURE_DEPENDS "${tests_dir}/scripts/*.py" "${tests_dir}/scripts/*.sh")
  foreach (file IN LISTS script_files)
    cmake_path (GET file STEM name)
    set (interpreter bash)
    if (file MATCHES "\\.py$")
      set (interpreter "${EBB_PYTHON}")
    endif ()
    string (REPLACE "_" "-" test script-${name})
    add_test (NAME ${test} COMMAND ${interpreter} "${file}" ${arguments_${name}})
    if (name MATCHES "^long_")
      ebb_set_test_properties (${test} "script;long" 1500 ${gi_environment} "PYTHONDONTWRITEBYTECODE=1")
    else ()
      ebb_set_test_properties (${test} script 300 ${gi_environment} "PYTHONDONTWRITEBYTECODE=1")
    endif ()
  endforeach ()
endif ()

include (EbbMpiTests)
include (EbbCudaemuTests)
