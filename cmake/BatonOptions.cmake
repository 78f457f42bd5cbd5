# One interface target carries the language level, the warnings and the sanitizers; every target of the tree links it.
add_library(baton_options INTERFACE)
add_library(baton::options ALIAS baton_options)
target_compile_features(baton_options INTERFACE cxx_std_20)
target_include_directories(baton_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(baton_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wno-missing-field-initializers -Wshadow -Wnon-virtual-dtor -Wold-style-cast>
  $<$<AND:$<BOOL:${BATON_WERROR}>,$<COMPILE_LANGUAGE:CXX>>:-Werror>)
# g++ 12 reports overlapping copies in std::string's own functions where there are none (GCC bug 105651).
target_compile_options(baton_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:$<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>>)
# Results must not depend on which products a compiler chooses to fuse: kernels fuse by intrinsic, on purpose.
target_compile_options(baton_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(BATON_SANITIZE)
  target_compile_options(baton_options INTERFACE
    -fsanitize=${BATON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(baton_options INTERFACE -fsanitize=${BATON_SANITIZE})
endif()

# Debian's Abseil is compiled without the thread sanitizer: its locks are explained to it where our code calls them.
if(BATON_SANITIZE STREQUAL "thread")
  file(READ ${CMAKE_SOURCE_DIR}/tests/support/tsan_abseil.cc annotations)
  string(REGEX MATCHALL "_ZNK?4absl7debian3[A-Za-z0-9_]+" wrapped_symbols "${annotations}")
  list(REMOVE_DUPLICATES wrapped_symbols)
  list(TRANSFORM wrapped_symbols PREPEND "LINKER:--wrap=")
  add_library(baton_tsan_abseil STATIC ${CMAKE_SOURCE_DIR}/tests/support/tsan_abseil.cc)
  target_compile_features(baton_tsan_abseil PRIVATE cxx_std_20)
  target_compile_options(baton_tsan_abseil PRIVATE -O1)
  target_link_options(baton_options INTERFACE ${wrapped_symbols})
  target_link_libraries(baton_options INTERFACE baton_tsan_abseil)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
